"""`Running`: a built variant in a fresh process."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lightning_perf.inference.errors import VariantError, worker_errors
from lightning_perf.inference.measurement.messages import Predict, Predicted, Ready, Time, Timed, WorkOrder
from lightning_perf.inference.results.tradeoff import ColdStart, Reload
from lightning_perf.inference.variants.build import BuiltVariant
from lightning_perf.workers.channel import M, Message
from lightning_perf.workers.process import WorkerProcess

__all__ = ["COARSE_RELOAD_TOLERANCE", "RELOAD_TOLERANCE", "Running"]

RELOAD_TOLERANCE = 1e-3
"""Largest difference of an output between two processes, as a share of the largest output. The same file with as many
threads gives the same bits on a CPU in most runtimes; a runtime may choose other kernels from process to process."""

COARSE_RELOAD_TOLERANCE = 0.02
"""The same for int8 and 16 bits: a sum that is rounded otherwise moves an activation by one of its 255 steps, or by a
256th (bfloat16), and what follows. Also for float32 on a GPU: its convolutions round their inputs to TF32, which has no
more bits than fp16, in some kernels and not in others."""

_COARSE = ("int8", "fp16", "bf16")
"""What is in the names of such runtimes."""

TURN_TIMEOUT_S = 600.0


class Running:
    """Loads an artefact in a process of its own.

    Args:
        built: The artefact.
        inputs: ``.npy`` file of the inputs to time.
        device: Where to run.
        threads: CPU threads.
        timeout_s: What loading, and predicting all validation data, may take.

    Raises:
        VariantError: It cannot be loaded.
    """

    def __init__(self, built: BuiltVariant, inputs: Path, device: str, threads: int, timeout_s: float) -> None:
        self._built = built
        self._inputs = inputs
        self._timeout_s = timeout_s
        order = WorkOrder(str(built.folder), device, threads, str(inputs))
        with worker_errors():
            self._worker = WorkerProcess(
                "lightning_perf.inference.variants.worker:run",
                order,
                path=sys.path,
                environment={"OMP_NUM_THREADS": str(threads)},
            )
            try:
                ready = self._worker.receive(Ready, timeout_s=timeout_s)
            except BaseException:
                self._worker.kill()
                raise
        self.cold = ColdStart(ready.load_ms, ready.first_call_ms, ready.peak_rss_bytes, ready.peak_device_bytes)

    def predict(self, inputs: Path) -> NDArray[np.float32]:
        """Outputs for all inputs of a ``.npy`` file.

        Raises:
            VariantError: It fails.
        """
        outputs = self._built.outputs.with_suffix(".predicted.npy")
        self._ask(Predict(str(inputs), str(outputs)), Predicted, self._timeout_s)
        predicted: NDArray[np.float32] = np.load(outputs)
        outputs.unlink()
        return predicted

    def check_reload(self) -> Reload:
        """Compare its outputs with those of the process that built it.

        Raises:
            VariantError: It fails, or its outputs differ.
        """
        expected, found = np.load(self._built.outputs), self.predict(self._inputs)
        difference = relative_difference(found, expected)
        artefact = self._built.artefact
        coarse = artefact.device == "cuda" or any(arithmetic in artefact.runtime for arithmetic in _COARSE)
        allowed = COARSE_RELOAD_TOLERANCE if coarse else RELOAD_TOLERANCE
        if not difference <= allowed:
            raise VariantError(
                f"loaded in a fresh process it gives other outputs: they differ by {difference:.2g} of the largest, "
                f"{allowed:g} is allowed"
            )
        return Reload(difference, allowed)

    def time(self, order: Time) -> Timed:
        """Time calls.

        Raises:
            VariantError: It fails.
        """
        return self._ask(order, Timed, TURN_TIMEOUT_S)

    def close(self) -> None:
        """End it."""
        self._worker.close()

    def _ask(self, request: Message, reply: type[M], timeout_s: float) -> M:
        with worker_errors():
            self._worker.send(request)
            return self._worker.receive(reply, timeout_s=timeout_s)


def relative_difference(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Largest difference of two outputs, as a share of the largest expected one.

    Example:
        >>> relative_difference(np.array([1.0, -1.9]), np.array([1.0, -2.0])).__round__(3)
        0.05
    """
    if found.shape != expected.shape:
        return float("inf")
    largest = float(np.abs(expected).max(initial=0.0))
    difference = float(np.abs(found - expected).max(initial=0.0))
    return difference / largest if largest > 0 else (0.0 if difference == 0 else float("inf"))
