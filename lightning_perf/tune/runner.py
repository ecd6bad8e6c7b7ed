"""`Runner`: one training in its own process, which is measured window by window."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from lightning_perf.tune.errors import TrialError, trial_errors
from lightning_perf.tune.messages import Order, Ready, Run, Window
from lightning_perf.workers.process import WorkerProcess

WORKER = "lightning_perf.tune.worker:main"

FIRST_STEPS = 5
"""Steps before the first timed window: compilation, allocators, the first workers."""
MIN_WINDOW_STEPS = 2


class Runner:
    """A training that is measured window by window.

    Args:
        time_left_s: Returns the seconds that it may still take.

    Attributes:
        levers: Names of the levers it trains with.
        losses: The loss of each optimizer step so far.
        failed: Whether it has failed and cannot train any more.
        last: The last window.
        start_s: Time that its process took to start, up to the first window that may be timed.

    Raises:
        TrialError: The training fails before its first timed window.
    """

    def __init__(self, order: Order, time_left_s: Callable[[], float]) -> None:
        self.levers = order.levers
        self.losses: list[float] = []
        self.failed = False
        self.last: Window | None = None
        self._time_left_s = time_left_s
        began = time.monotonic()
        with trial_errors():
            self._worker = WorkerProcess(WORKER, order, path=sys.path)
        try:
            with trial_errors():
                self._worker.receive(Ready, timeout_s=time_left_s())
            self.window(FIRST_STEPS)
        except BaseException:
            self.close()
            raise
        self.start_s = time.monotonic() - began

    def window(self, steps: int) -> Window:
        """Train some steps."""
        try:
            with trial_errors():
                self._worker.send(Run(steps))
                window = self._worker.receive(Window, timeout_s=self._time_left_s())
        except TrialError:
            self.failed = True
            raise
        self.losses += window.losses
        self.last = window
        return window

    def steps_for(self, seconds: float) -> int:
        """Return how many steps take about this time, by windows that are not used for anything else."""
        began = time.perf_counter()
        steps = FIRST_STEPS
        window = self.window(steps)
        while time.perf_counter() - began < seconds / 2:
            steps *= 2
            window = self.window(steps)
        return max(MIN_WINDOW_STEPS, round(seconds / (window.seconds / window.steps)))

    def time_a_step_s(self, steps: int, *, by_sample: bool) -> float:
        """Train a window, and return the time per step or per sample."""
        window = self.window(steps)
        if not by_sample:
            return window.seconds / window.steps
        if not window.samples:
            raise TrialError("the batches do not show how many samples they have")
        return window.seconds / window.samples

    def close(self) -> None:
        """End the process."""
        self._worker.close()
