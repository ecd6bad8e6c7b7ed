"""How long the training thread waits for a core: the sign of a machine that is busy with something else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from lightning_perf.analysis.steps.step_times import WARMUP_STEPS
from lightning_perf.callbacks.steps.fit_state import FitState

TASKS = Path("/proc/self/task")


def thread_wait_ns() -> int | None:
    """Return the time that this thread was ready to run and had no core so far, or None where nobody counts it.

    Linux counts it for each thread (proc(5), ``schedstat``), also while a container's quota is used up.
    """
    try:
        fields = (TASKS / str(threading.get_native_id()) / "schedstat").read_text(encoding="ascii").split()
        return int(fields[1])
    except (OSError, ValueError, IndexError):  # not Linux, or a kernel without these statistics
        return None


class CoreWaits:
    """Measures the share of the time that the training thread waits for a core, from the end of the warm-up on."""

    def __init__(
        self,
        state: FitState,
        *,
        waited_ns: Callable[[], int | None] = thread_wait_ns,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._state = state
        self._waited_ns = waited_ns
        self._clock_ns = clock_ns
        self._begun: tuple[int, int] | None = None

    def on_step_start(self) -> None:
        """Begin with the first step, and again when the warm-up is over."""
        if self._state.step in (0, WARMUP_STEPS):
            waited_ns = self._waited_ns()
            self._begun = None if waited_ns is None else (waited_ns, self._clock_ns())

    def share(self) -> float | None:
        """Return the share of the time so far, 0 to 1, or None where it is not known."""
        if self._begun is None:
            return None
        waited_ns, now_ns = self._waited_ns(), self._clock_ns()
        begin_wait_ns, begin_ns = self._begun
        if waited_ns is None or now_ns <= begin_ns:
            return None
        return min(1.0, max(0.0, (waited_ns - begin_wait_ns) / (now_ns - begin_ns)))
