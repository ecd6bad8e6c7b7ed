"""Build a variant in one process and run it in another: the worker's side of both, and the supervisor's."""

from __future__ import annotations

import resource
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import InferenceError, VariantError, worker_errors
from lightning_perf.inference.measurement.measure import Time, Timed
from lightning_perf.inference.results.tradeoff import ColdStart, Reload
from lightning_perf.inference.variants.artefact import ARTEFACT_FILE, Artefact, read_artefact
from lightning_perf.workers.channel import Channel, M, Message
from lightning_perf.workers.process import WorkerProcess

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
    from lightning_perf.inference.model import Subject, on_device
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
    from lightning_perf.inference.model import finish, on_device
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


RELOAD_TOLERANCE = 1e-3
"""Largest allowed difference of outputs between two processes, as a share of the largest output. On a CPU, the same
file with the same number of threads gives the same bits in most runtimes. A runtime may choose other kernels per
process."""

COARSE_RELOAD_TOLERANCE = 0.02
"""The same for int8 and 16-bit types: different rounding moves an activation by one of 255 steps, or by a 256th
(bfloat16), and later activations with it. It also applies to float32 on a GPU, where some convolution kernels round
their inputs to TF32, which has no more bits than fp16."""

_COARSE = ("int8", "fp16", "bf16")
"""Parts of the names of such runtimes."""

TURN_TIMEOUT_S = 600.0


class BuiltVariant(Struct, frozen=True):
    """An artefact, with its outputs in the process that built it.

    Attributes:
        outputs: ``.npy`` file of its outputs on the subject's inputs.
    """

    artefact: Artefact
    folder: Path
    outputs: Path
    seconds: float


def build_variant(
    origin: Origin, subject: Path, folder: Path, work: Path, *, threads: int, timeout_s: float
) -> BuiltVariant:
    """Build a variant from the file of a subject, after its transforms.

    An existing artefact in `folder` is replaced once the new one is complete. `work` is for temporary files.
    """
    if folder.exists() and not (folder / ARTEFACT_FILE).is_file():
        raise InferenceError(f"{folder} exists and is not an exported variant. Give another --out, or move it away.")
    staging = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
    except OSError as error:
        raise InferenceError(f"{staging.parent} cannot be written ({error.strerror}). Give another --out.") from error
    outputs = work / f"{folder.name}.outputs.npy"
    order = BuildOrder(str(subject), str(staging), str(outputs), origin)
    try:
        with worker_errors(), _start_worker("build", order, threads) as worker:
            built = worker.receive(Built, timeout_s=timeout_s)
        shutil.rmtree(folder, ignore_errors=True)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return BuiltVariant(read_artefact(folder), folder, outputs, built.seconds)


class Running:
    """Loads an artefact in a process of its own. `cold` has the time and memory that it took."""

    def __init__(self, built: BuiltVariant, inputs: Path, device: str, threads: int, timeout_s: float) -> None:
        self._built = built
        self._inputs = inputs
        self._timeout_s = timeout_s
        with worker_errors():
            self._worker = _start_worker("run", WorkOrder(str(built.folder), device, threads, str(inputs)), threads)
            try:
                self.cold = self._worker.receive(Ready, timeout_s=timeout_s).cold
            except BaseException:
                self._worker.kill()
                raise

    def predict(self, inputs: Path) -> NDArray[np.float32]:
        """Return the outputs for all inputs in a ``.npy`` file."""
        outputs = self._built.outputs.with_suffix(".predicted.npy")
        self._ask(Predict(str(inputs), str(outputs)), Predicted, self._timeout_s)
        predicted: NDArray[np.float32] = np.load(outputs)
        outputs.unlink()
        return predicted

    def check_reload(self) -> Reload:
        """Compare the outputs with those of the process that built the variant."""
        return compare_reload(self.predict(self._inputs), np.load(self._built.outputs), self._built.artefact)

    def time(self, order: Time) -> Timed:
        """Time calls."""
        return self._ask(order, Timed, TURN_TIMEOUT_S)

    def close(self) -> None:
        """End the worker process."""
        self._worker.close()

    def _ask(self, request: Message, reply: type[M], timeout_s: float) -> M:
        with worker_errors():
            self._worker.send(request)
            return self._worker.receive(reply, timeout_s=timeout_s)


def _start_worker(task: str, order: Message, threads: int) -> WorkerProcess:
    """Start a task of `variants.worker`, with this process's search path: the model's module may be on it."""
    environment = {"OMP_NUM_THREADS": str(threads)}
    return WorkerProcess(
        f"lightning_perf.inference.variants.running:{task}", order, path=sys.path, environment=environment
    )


def compare_reload(found: NDArray[np.float32], built: NDArray[np.float32], artefact: Artefact) -> Reload:
    """Compare the outputs of an artefact in a fresh process with those of the process that built it."""
    difference = relative_difference(found, built)
    coarse = artefact.device == "cuda" or any(arithmetic in artefact.runtime for arithmetic in _COARSE)
    allowed = COARSE_RELOAD_TOLERANCE if coarse else RELOAD_TOLERANCE
    if not difference <= allowed:
        raise VariantError(
            f"in a fresh process its outputs differ by {difference:.2g} of the largest output from those of the "
            f"process that built it; at most {allowed:g} is allowed"
        )
    return Reload(difference, allowed)


def relative_difference(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Return the largest difference of two outputs, as a share of the largest expected output."""
    if found.shape != expected.shape:
        return float("inf")
    largest = float(np.abs(expected).max(initial=0.0))
    difference = float(np.abs(found - expected).max(initial=0.0))
    return difference / largest if largest > 0 else (0.0 if difference == 0 else float("inf"))
