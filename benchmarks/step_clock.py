"""Times of a fit's steps after a warm-up, for benchmarks that compare fits."""

from __future__ import annotations

import time
from typing import Any

import lightning.pytorch as pl
import torch


class StepClock(pl.Callback):
    """Wall time from the end of the warm-up to the end of training.

    The device has finished at both.

    Args:
        warm_up_steps: Steps that are not timed.
    """

    def __init__(self, warm_up_steps: int) -> None:
        self._warm_up_steps = warm_up_steps
        self._begin_s = self._end_s = 0.0

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """The warm-up ends."""
        if trainer.global_step == self._warm_up_steps:
            self._begin_s = _now_s()
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()  # without the trials of cuDNN's algorithms

    def on_train_end(self, *_: Any) -> None:
        """Training ends."""
        self._end_s = _now_s()

    @property
    def seconds(self) -> float:
        """Wall time of the steps after the warm-up."""
        return self._end_s - self._begin_s


def _now_s() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
