"""The process that runs one variant: a fresh one, as a deployment would start it."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.inference.helper_main import Channel, run_helper
from lightning_perf.inference.messages import Predict, Predicted, Ready, WorkOrder

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["main"]


def main() -> None:
    """Load the artefact of the order, then do what is asked until nobody asks any more."""
    run_helper(WorkOrder, _work)


def _work(order: WorkOrder, channel: Channel) -> None:
    import numpy as np
    import torch

    from lightning_perf.inference.artefact import load_artefact
    from lightning_perf.inference.device import on_device
    from lightning_perf.inference.predict import predict
    from lightning_perf.inference.timing import finish, time_calls

    torch.set_num_threads(order.threads)
    device = torch.device(order.device)
    if device.type == "cuda":
        torch.zeros(1, device=device)  # the context is the process's, not the variant's
    with on_device(device), torch.inference_mode():
        # Made here, as those of later calls: runtimes compile anew for tensors that are not of inference mode.
        inputs = torch.from_numpy(np.load(order.inputs))
        began = time.perf_counter()
        call = load_artefact(Path(order.folder), device, order.threads)
        loaded = time.perf_counter()
        call(inputs[:1].to(device))
        finish(device)
        called = time.perf_counter()
        channel.reply(
            Ready(1e3 * (loaded - began), 1e3 * (called - loaded), _peak_rss_bytes(), _peak_device_bytes(device))
        )
        batches: dict[int, Tensor] = {}
        for request in channel.requests():
            if isinstance(request, Predict):
                np.save(request.outputs, predict(call, np.load(request.inputs, mmap_mode="r"), device))
                channel.reply(Predicted())
            else:
                if request.batch not in batches:
                    batches[request.batch] = _batch(inputs, request.batch).to(device)
                channel.reply(time_calls(call, batches[request.batch], device, request))


def _batch(inputs: Tensor, size: int) -> Tensor:
    """A batch of this size out of the real inputs, from the first again when they run out."""
    import torch

    return inputs[torch.arange(size) % len(inputs)].contiguous()


def _peak_rss_bytes() -> int | None:
    """The most memory that this process held.

    Linux starts ``ru_maxrss`` of a new program at its parent's peak (``exec_mmap`` in fs/exec.c), so the process's own
    high-water mark is read where there is one.
    """
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _peak_device_bytes(device: torch.device) -> int | None:
    """The most memory that torch held on the device; other runtimes' memory is not in it."""
    import torch

    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None


if __name__ == "__main__":
    main()
