"""The process that builds one variant."""

from __future__ import annotations

import time
from pathlib import Path

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.helper_main import Channel, run_helper
from lightning_perf.inference.messages import BuildOrder, Built

__all__ = ["main"]


def main() -> None:
    """Build the variant of the order, run it once, and write what it is and what it gave."""
    run_helper(BuildOrder, _build)


def _build(order: BuildOrder, channel: Channel) -> None:
    import numpy as np
    import torch

    from lightning_perf.inference.artefact import Origin, save_artefact
    from lightning_perf.inference.device import on_device
    from lightning_perf.inference.predict import predict
    from lightning_perf.inference.runtimes.registry import find_runtime
    from lightning_perf.inference.subject import Subject

    subject = torch.load(order.subject, weights_only=False)
    if not isinstance(subject, Subject):
        raise TypeError(f"{order.subject} holds a {type(subject).__name__}")
    torch.set_num_threads(subject.threads)
    folder = Path(order.folder)
    runtime = find_runtime(order.runtime)
    with on_device(subject.device):
        began = time.perf_counter()
        provenance = runtime.build(subject, folder)
        seconds = time.perf_counter() - began
        with torch.inference_mode():
            call = runtime.load(folder, subject.device, subject.threads)
            outputs = predict(call, subject.inputs.numpy(), subject.device)
    if len(outputs) != len(subject.inputs):
        raise VariantError(f"it gave {len(outputs)} rows for {len(subject.inputs)} inputs")
    if not np.isfinite(outputs).all():
        raise VariantError("its outputs are not finite: numbers overflowed its type")
    np.save(order.outputs, outputs)
    save_artefact(
        folder,
        subject,
        Origin(
            variant=order.variant,
            runtime=order.runtime,
            transforms=order.transforms,
            source=order.source,
            labels=order.labels,
        ),
        output_shape=tuple(outputs.shape[1:]),
        provenance=provenance,
    )
    channel.reply(Built(seconds))


if __name__ == "__main__":
    main()
