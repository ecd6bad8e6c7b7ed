"""Worker processes that build and run variants. Each one starts fresh, as in a deployment."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.measurement.measure import Time
from lightning_perf.inference.results.tradeoff import ColdStart
from lightning_perf.workers.channel import Channel, Message

if TYPE_CHECKING:
    from torch import Tensor


class Origin(Message, frozen=True, kw_only=True):
    """The names of a variant, its parts, its model and the model's classes."""

    variant: str
    runtime: str
    transforms: tuple[str, ...]
    source: str
    labels: tuple[str, ...] = ()


class BuildOrder(Message, frozen=True):
    """Ask a worker process to build one variant (`build`).

    The first three fields are paths: the pickled `Subject`, the folder to fill, and the ``.npy`` file for the variant's
    outputs on the subject's inputs.
    """

    subject: str
    folder: str
    outputs: str
    origin: Origin


class Built(Message, frozen=True):
    """The artefact is complete."""

    seconds: float


class WorkOrder(Message, frozen=True):
    """Ask a worker process to load one artefact and to answer requests (`run`)."""

    folder: str
    device: str
    threads: int
    inputs: str


class Ready(Message, frozen=True):
    """The artefact is loaded and has run once, on one input."""

    cold: ColdStart


class Predict(Message, frozen=True):
    """Run all inputs of a ``.npy`` file and write the outputs to another."""

    inputs: str
    outputs: str


class Predicted(Message, frozen=True):
    """The outputs are written."""


def build(channel: Channel) -> None:
    """Build the variant of a `BuildOrder`, run it once, and write its description and its outputs."""
    channel.describe = describe_error
    order = channel.receive(BuildOrder)
    import numpy as np
    import torch

    from lightning_perf.inference.measurement.timing import predict
    from lightning_perf.inference.model.subject import Subject, on_device
    from lightning_perf.inference.runtimes.registry import find_runtime
    from lightning_perf.inference.variants.artefact import save_artefact

    subject = torch.load(order.subject, weights_only=False)
    if not isinstance(subject, Subject):
        raise TypeError(f"{order.subject} holds a {type(subject).__name__}")
    torch.set_num_threads(subject.threads)
    folder = Path(order.folder)
    runtime = find_runtime(order.origin.runtime)
    with on_device(subject.device):
        began = time.perf_counter()
        provenance = runtime.build(subject, folder)
        seconds = time.perf_counter() - began
        with torch.inference_mode():
            call = runtime.load(folder, subject.device, subject.threads)
            outputs = predict(call, subject.inputs.numpy(), subject.device)
    if len(outputs) != len(subject.inputs):
        raise VariantError(f"it returned {len(outputs)} rows for {len(subject.inputs)} inputs")
    if not np.isfinite(outputs).all():
        raise VariantError("its outputs are NaN or infinite: values overflowed its number type")
    np.save(order.outputs, outputs)
    save_artefact(folder, subject, order.origin, output_shape=tuple(outputs.shape[1:]), provenance=provenance)
    channel.send(Built(seconds))


def run(channel: Channel) -> None:
    """Load the artefact of a `WorkOrder`, then answer requests until the supervisor asks to stop."""
    channel.describe = describe_error
    order = channel.receive(WorkOrder)
    import numpy as np
    import torch

    from lightning_perf.inference.measurement.timing import predict, time_calls
    from lightning_perf.inference.model.subject import finish, on_device
    from lightning_perf.inference.variants.artefact import load_artefact

    torch.set_num_threads(order.threads)
    device = torch.device(order.device)
    if device.type == "cuda":
        torch.zeros(1, device=device)  # create the CUDA context first, so that the load time excludes it
    with on_device(device), torch.inference_mode():
        # Created in inference mode, like the tensors of later calls: runtimes recompile for other tensors.
        inputs = torch.from_numpy(np.load(order.inputs))
        began = time.perf_counter()
        call = load_artefact(Path(order.folder), device, order.threads)
        loaded = time.perf_counter()
        call(inputs[:1].to(device))
        finish(device)
        called = time.perf_counter()
        # Only torch's own memory: other runtimes do not report theirs.
        device_bytes = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
        cold = ColdStart(1e3 * (loaded - began), 1e3 * (called - loaded), _peak_rss_bytes(), device_bytes)
        channel.send(Ready(cold))
        batches: dict[int, Tensor] = {}
        while True:
            request: Predict | Time = channel.receive(Predict, Time)
            if isinstance(request, Predict):
                np.save(request.outputs, predict(call, np.load(request.inputs, mmap_mode="r"), device))
                channel.send(Predicted())
            else:
                if request.batch not in batches:  # real inputs, from the first again if they run out
                    rows = torch.arange(request.batch) % len(inputs)
                    batches[request.batch] = inputs[rows].contiguous().to(device)
                channel.send(time_calls(call, batches[request.batch], device, request))


def describe_error(error: BaseException) -> str:
    """Return the reason that an error gives for a variant's row."""
    return str(error) if isinstance(error, (VariantError, InferenceError)) else reason_of(error)


def _peak_rss_bytes() -> int | None:
    """Return the peak resident memory of this process.

    On Linux, ``ru_maxrss`` of a new program starts at its parent's peak (``exec_mmap`` in fs/exec.c), so this reads the
    process's own high-water mark if the system has it.
    """
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
