"""What a user may set for a tuning: its options and its time budget."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from lightning_perf.tune.errors import TuneError
from lightning_perf.tune.measurement import LEAST_ROUNDS, MOST_ROUNDS

__all__ = [
    "Budget",
    "TuneSettings",
]


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """How trials are made.

    Attributes:
        minutes: The budget. Levers that it has no time for are listed as not tried.
        levers: Names of levers or families; all when empty.
        rounds: Windows of each side in a trial, in turns.
        window_s: Seconds that a window should take.
        seed: Seeds weights, order of samples, and order of windows.

    Raises:
        TuneError: A setting is of no use.
    """

    minutes: float = 15.0
    levers: tuple[str, ...] = ()
    rounds: int = 12
    window_s: float = 0.75
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.minutes < math.inf and 0 < self.window_s < math.inf):
            raise TuneError("minutes and window_s have to be positive numbers")
        if not LEAST_ROUNDS <= self.rounds <= MOST_ROUNDS:
            raise TuneError(f"rounds: from {LEAST_ROUNDS}, below which there is no 95 % interval, to {MOST_ROUNDS}")
        if self.seed < 0:
            raise TuneError("seed: 0 or more")


RESERVE_FACTOR = 1.25
"""Over what the same took before: machines get busier, too."""


class Budget:
    """The time of a tuning, from now on.

    Args:
        minutes: What it was given.

    Attributes:
        total_s: The same in seconds.
        trial_s: What a trial of the training as it is takes, from the start of its process to its end.
    """

    def __init__(self, minutes: float) -> None:
        self.total_s = minutes * 60
        self.trial_s = 0.0
        self._start_s = 0.0
        self._reserve_s = 0.0
        self._began_s = time.monotonic()

    def spent_s(self) -> float:
        """Seconds that have gone."""
        return time.monotonic() - self._began_s

    def left_s(self) -> float:
        """Seconds that remain; below 0 once it is overdrawn."""
        return self.total_s - self.spent_s()

    def baseline_took(self, start_s: float, trial_s: float) -> None:
        """Learn from the training as it is.

        Args:
            start_s: What the start of a process took.
            trial_s: What a trial took, its process's start included.
        """
        self._start_s, self.trial_s = start_s, trial_s
        self.kept_took(trial_s)

    def kept_took(self, trial_s: float) -> None:
        """Set time aside to measure what is kept once more, in two fresh processes.

        Args:
            trial_s: What the trial took that it was kept after: one that compiles takes longer to start.
        """
        self._reserve_s = max(self._reserve_s, RESERVE_FACTOR * (trial_s + self._start_s))

    def allows_a_trial(self) -> bool:
        """Whether there is time for one besides what is set aside."""
        return self.left_s() >= self._reserve_s + self.trial_s

    def allows_pairs(self, count: int, trial_s: float) -> bool:
        """Return whether there is time for some pairs of fresh processes, apart from the time that is set aside.

        Args:
            count: Number of pairs.
            trial_s: Time of a trial of the same, with one fresh process.
        """
        pair_s = RESERVE_FACTOR * (trial_s + self._start_s)
        return self.left_s() >= max(self._reserve_s, pair_s) + count * pair_s

    def share_s(self) -> float:
        """What one trial may take: a lever that hangs shall leave time for others."""
        return max(self.trial_s, (self.left_s() - self._reserve_s) / 2)
