"""`Budget`: the minutes of a tuning, and what is set aside of them for its last measurement."""

from __future__ import annotations

import time

__all__ = ["Budget"]

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

    def share_s(self) -> float:
        """What one trial may take: a lever that hangs shall leave time for others."""
        return max(self.trial_s, (self.left_s() - self._reserve_s) / 2)
