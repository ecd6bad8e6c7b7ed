"""Page faults of a fit's steps: the price of a C library that gives memory back and takes it again in every step."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.machine.page_faults import count_page_faults
from lightning_perf.run_files.steps import WARMUP_STEPS

LAST_STEPS = 20
LEAST_STEPS = 3
"""So many steps after the warm-up are the least that a median is taken of."""

LATEST_STEPS = 3
"""If these have fewer faults than the others, the run is still settling."""


class PageFaultCounter:
    """Counts the page faults of whole steps after the warm-up, except where the profiler runs.

    The profiler's own faults are not the training's. Those of the first steps do not come back: they compile, and take
    the memory that later steps use again.
    """

    def __init__(self, state: FitState, *, count: Callable[[], int | None] = count_page_faults) -> None:
        self._state = state
        self._count = count
        self._before: int | None = None
        self._steps: deque[int] = deque(maxlen=LAST_STEPS)

    def on_step_start(self) -> None:
        """Count from here."""
        warming_up = self._state.step < WARMUP_STEPS
        self._before = None if self._state.profiling or warming_up else self._count()

    def on_step_end(self) -> None:
        """Keep the difference."""
        now = self._count() if self._before is not None else None
        if now is not None and self._before is not None:
            self._steps.append(now - self._before)
        self._before = None

    def on_step_cut(self) -> None:
        """Forget a step that is dropped or interrupted: validation has page faults of its own."""
        self._before = None

    def median_per_step(self) -> float | None:
        """Return the median of the last steps, that of the latest if it is lower, or None when they are too few."""
        steps = list(self._steps)
        if len(steps) < LEAST_STEPS:
            return None
        return min(statistics.median(steps), statistics.median(steps[-LATEST_STEPS:]))
