"""The options of a tuning and its time budget."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from lightning_perf.tune.errors import TuneError
from lightning_perf.tune.measurement import LEAST_ROUNDS, MOST_ROUNDS


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """Options of a tuning. `PerfTuner` explains them."""

    minutes: float = 15.0
    levers: tuple[str, ...] = ()
    rounds: int = 12
    window_s: float = 0.75
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.minutes < math.inf and 0 < self.window_s < math.inf):
            raise TuneError("minutes and window_s must be positive numbers")
        if not LEAST_ROUNDS <= self.rounds <= MOST_ROUNDS:
            raise TuneError(
                f"rounds={self.rounds}: must be from {LEAST_ROUNDS}, the least with a 95 % interval, to {MOST_ROUNDS}"
            )
        if self.seed < 0:
            raise TuneError(f"seed={self.seed}: must be 0 or more")


RESERVE_FACTOR = 1.25
"""Time to set aside, relative to the last time: machines may become busier."""


class Budget:
    """The time budget of a tuning, which starts now.

    Attributes:
        trial_s: Time of a trial of the unchanged training, including the start of its process.
    """

    def __init__(self, minutes: float) -> None:
        self.total_s = minutes * 60
        self.trial_s = 0.0
        self._start_s = 0.0
        self._reserve_s = 0.0
        self._began_s = time.monotonic()

    def spent_s(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began_s

    def left_s(self) -> float:
        """Return the seconds that remain; negative once the budget is overdrawn."""
        return self.total_s - self.spent_s()

    def baseline_took(self, start_s: float, trial_s: float) -> None:
        """Learn the times of the unchanged training: to start a process, and of a trial, including that start."""
        self._start_s, self.trial_s = start_s, trial_s
        self.kept_took(trial_s)

    def kept_took(self, trial_s: float) -> None:
        """Set time aside to measure the kept levers once more, in two fresh processes.

        One that compiles takes longer to start, so this takes the time of the trial of the kept lever.
        """
        self._reserve_s = max(self._reserve_s, RESERVE_FACTOR * (trial_s + self._start_s))

    def allows_a_trial(self) -> bool:
        """Return whether there is time for a trial, apart from the time that is set aside."""
        return self.left_s() >= self._reserve_s + self.trial_s

    def fitting(self, costs: Sequence[float]) -> int:
        """Return how many trials there is time for, given their times relative to one of the unchanged training."""
        left_s = self.left_s() - self._reserve_s
        return sum(spent * self.trial_s <= left_s for spent in accumulate(costs))

    def minutes_for(self, costs: Sequence[float]) -> float:
        """Return the minutes that a budget for all of these trials would have, if no lever is kept."""
        return (self.spent_s() + self._reserve_s + sum(costs) * self.trial_s) / 60

    def allows_pairs(self, count: int, trial_s: float) -> bool:
        """Return whether there is time for some pairs of fresh processes, apart from the time that is set aside.

        `trial_s` is the time of a trial of the same, with one fresh process.
        """
        pair_s = RESERVE_FACTOR * (trial_s + self._start_s)
        return self.left_s() >= max(self._reserve_s, pair_s) + count * pair_s

    def share_s(self) -> float:
        """Return the most time that one trial may take: a lever that hangs must leave time for others."""
        return max(self.trial_s, (self.left_s() - self._reserve_s) / 2)
