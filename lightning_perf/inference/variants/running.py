"""Build variants, and run built ones, each in a process of its own."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.inference.errors import InferenceError, VariantError, worker_errors
from lightning_perf.inference.measurement.measure import Time, Timed
from lightning_perf.inference.results.tradeoff import Reload
from lightning_perf.inference.variants.artefact import ARTEFACT_FILE, Artefact, read_artefact
from lightning_perf.inference.variants.worker import BuildOrder, Built, Origin, Predict, Predicted, Ready, WorkOrder
from lightning_perf.workers.channel import M, Message
from lightning_perf.workers.process import WorkerProcess

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
        f"lightning_perf.inference.variants.worker:{task}", order, path=sys.path, environment=environment
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
