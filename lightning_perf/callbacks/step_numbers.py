"""The numbers of steps: those at which the Trainer's own logs stand."""

from __future__ import annotations

from collections.abc import Callable

from lightning_perf.callbacks.lightning_compat import Trainer

__all__ = ["StepNumbers", "step_number"]


class StepNumbers:
    """Numbers the steps of a fit, which count from 0 in it, as the Trainer does, which goes on from a checkpoint.

    Args:
        current: Gives the number of the step under way. It is asked once, when the fit's first step has begun: until
            then Lightning's loops still stand where the checkpoint was saved, in the middle of the step before.

    Example:
        >>> numbers = StepNumbers(lambda: 100)
        >>> numbers.of(0), numbers.of(5), numbers.index(105)
        (100, 105, 5)
    """

    def __init__(self, current: Callable[[], int]) -> None:
        self._current = current
        self._first: int | None = None

    def of(self, index: int) -> int:
        """The number of the fit's step `index`."""
        if self._first is None:
            self._first = self._current()
        return self._first + index

    def index(self, number: int) -> int:
        """Which step of the fit has a number."""
        return number - self.of(0)


def step_number(trainer: Trainer) -> int:
    """Number of the step under way, on the axis of the Trainer's own logs."""
    try:
        return int(trainer.fit_loop.epoch_loop._batches_that_stepped)
    except AttributeError:
        return int(trainer.global_step)
