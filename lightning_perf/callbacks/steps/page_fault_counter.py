"""Page faults of a fit's steps: the price of a C library that gives memory back and takes it again in every step."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

from lightning_perf.callbacks.steps.fit_state import FitState, StepObserver
from lightning_perf.page_faults import count_page_faults

__all__ = ["PageFaultCounter"]

LAST_STEPS = 20
LEAST_STEPS = 3
"""The first steps take the memory that later ones use again: fewer tell nothing of these."""


class PageFaultCounter(StepObserver):
    """Counts the page faults of whole steps, except where the profiler runs: its own are not the training's.

    Args:
        state: The state of the fit.
        count: Returns the page faults of this process so far, or None where the system does not count them.
    """

    def __init__(self, state: FitState, *, count: Callable[[], int | None] = count_page_faults) -> None:
        self._state = state
        self._count = count
        self._before: int | None = None
        self._steps: deque[int] = deque(maxlen=LAST_STEPS)

    def on_step_start(self) -> None:
        """Count from here."""
        self._before = None if self._state.profiling else self._count()

    def on_step_end(self) -> None:
        """Keep the difference."""
        now = self._count() if self._before is not None else None
        if now is not None and self._before is not None:
            self._steps.append(now - self._before)
        self._before = None

    def on_step_dropped(self) -> None:
        """Forget the step."""
        self._before = None

    def on_training_pause(self) -> None:
        """Forget the step: validation has page faults of its own."""
        self._before = None

    def median_per_step(self) -> float | None:
        """Return the median of the last steps, or None when they are too few."""
        return statistics.median(self._steps) if len(self._steps) >= LEAST_STEPS else None
