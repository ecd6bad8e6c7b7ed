"""A budget for the profiler: it starts no further window when it has cost the fit enough."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from statistics import median

from lightning_perf.callbacks.steps.fit_state import FitState, StepObserver

HISTORY = 50
"""Steps without the profiler that its steps are compared with."""


def check_budget(limit: float | timedelta | None) -> None:
    """Check that a limit makes sense."""
    if limit is None:
        return
    if isinstance(limit, timedelta):
        if limit < timedelta(0):
            raise ValueError(f"max_overhead={limit!r} is negative: give timedelta(seconds=30), or a part of the fit")
    elif isinstance(limit, bool) or not isinstance(limit, (int, float)):
        raise TypeError(f"max_overhead is a part of the fit's time (0.02) or a timedelta, not {limit!r}")
    elif not 0 <= limit <= 1:
        raise ValueError(f"max_overhead={limit} is no part of the fit's time: give 0 to 1, or a timedelta")


class OverheadBudget(StepObserver):
    """Counts the cost of the profiler, and decides whether another window may start.

    The cost is the time of its pauses and exports, plus the excess of profiled steps over the median of the last steps
    without it. The first window is always allowed: without one nothing is known. A further one is, if with the mean
    cost of a window so far the limit still holds.
    """

    def __init__(
        self,
        limit: float | timedelta,
        state: FitState,
        *,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._limit = limit
        self._state = state
        self._now_ns = now_ns
        self._start_ns = now_ns()
        self._usual: deque[int] = deque(maxlen=HISTORY)
        self._begin_ns: int | None = None
        self._profiled = False
        self._windows = 0
        self.cost_ns = 0
        """The cost of the profiler so far."""
        self.refused = 0
        """Windows that were not allowed."""

    def allows(self) -> bool:
        """Whether a window may start now; a refusal is counted."""
        if not self._windows:
            return True
        expected_ns = self.cost_ns + self.cost_ns / self._windows
        if isinstance(self._limit, timedelta):
            limit_ns = self._limit.total_seconds() * 1e9
        else:
            limit_ns = self._limit * (self._now_ns() - self._start_ns)
        allowed = expected_ns <= limit_ns
        self.refused += not allowed
        return allowed

    def window_ends(self, cost_ns: int) -> None:
        """Count a window, and the time that training waited for it between steps."""
        self._windows += 1
        self.cost_ns += cost_ns

    def on_step_start(self) -> None:
        self._profiled = self._state.profiling
        self._begin_ns = self._now_ns()

    def on_step_end(self) -> None:
        """Count the step to those without the profiler, or its excess to the cost."""
        if self._begin_ns is None:
            return
        step_ns = self._now_ns() - self._begin_ns
        if not self._profiled:
            self._usual.append(step_ns)
        elif self._usual:
            self.cost_ns += max(step_ns - round(median(self._usual)), 0)

    def on_training_pause(self) -> None:
        """Leave out a step that is interrupted."""
        self._begin_ns = None
