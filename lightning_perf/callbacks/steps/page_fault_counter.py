"""Page faults of a fit's steps: what the C library's giving memory back costs a training on the processor."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

from lightning_perf.callbacks.steps.step_tracker import StepObserver
from lightning_perf.page_faults import count_page_faults

__all__ = ["FaultCounter"]

LAST_STEPS = 20
LEAST_STEPS = 3
"""The first steps take the memory that later ones use again: fewer tell nothing of these."""


class FaultCounter(StepObserver):
    """Counts the page faults of whole steps.

    Args:
        is_profiling: Whether the profiler is at work, asked at the begin of each step: its own are not the training's.
        count: Faults of this process so far, or None where they are not counted.
    """

    def __init__(
        self, *, is_profiling: Callable[[], bool], count: Callable[[], int | None] = count_page_faults
    ) -> None:
        self._is_profiling = is_profiling
        self._count = count
        self._before: int | None = None
        self._steps: deque[int] = deque(maxlen=LAST_STEPS)

    @property
    def follows_phases(self) -> bool:
        """None of them."""
        return False

    def step_begins(self, index: int) -> None:  # noqa: ARG002
        """Count from here."""
        self._before = None if self._is_profiling() else self._count()

    def step_ends(self) -> None:
        """Keep the difference."""
        now = self._count() if self._before is not None else None
        if now is not None and self._before is not None:
            self._steps.append(now - self._before)
        self._before = None

    def step_dropped(self) -> None:
        """Forget the step."""
        self._before = None

    def training_pauses(self) -> None:
        """Forget the step: validation has faults of its own."""
        self._before = None

    def a_step(self) -> float | None:
        """Median of the last steps; None when they are too few."""
        return statistics.median(self._steps) if len(self._steps) >= LEAST_STEPS else None
