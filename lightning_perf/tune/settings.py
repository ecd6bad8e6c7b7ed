"""The options of a tuning and its time budget."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from lightning_perf.tune.errors import TuneError
from lightning_perf.tune.measurement import LEAST_ROUNDS, MOST_ROUNDS

USUAL_ROUNDS, USUAL_WINDOW_S = 12, 0.75
"""Windows of each side in a pair, and their length, if the budget has time for them."""

FEW_ROUNDS, SHORT_WINDOW_S, LEAST_WINDOW_STEPS = 8, 0.2, 2
"""The least that a small budget makes of them. With fewer rounds, one disturbed window widens the interval."""


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """Options of a tuning. `PerfTuner` explains them."""

    minutes: float = 15.0
    levers: tuple[str, ...] = ()
    rounds: int | None = None
    window_s: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.minutes < math.inf and 0 < (self.window_s or USUAL_WINDOW_S) < math.inf):
            raise TuneError("minutes and window_s must be positive numbers")
        if not LEAST_ROUNDS <= (self.rounds or USUAL_ROUNDS) <= MOST_ROUNDS:
            raise TuneError(
                f"rounds={self.rounds}: must be from {LEAST_ROUNDS}, the least with a 95 % interval, to {MOST_ROUNDS}"
            )
        if self.seed < 0:
            raise TuneError(f"seed={self.seed}: must be 0 or more")

    def windows(self, step_s: float, pair_s: float) -> tuple[int, int]:
        """Return the rounds of a pair and the steps of a window, so that its windows take about a given time.

        Windows become shorter first, then there are fewer rounds.

        Example:
            >>> [TuneSettings().windows(0.05, pair_s) for pair_s in (60, 12, 4, 1)]
            [(12, 15), (12, 10), (10, 4), (8, 4)]
        """
        rounds, window_s = self.rounds or USUAL_ROUNDS, self.window_s
        if window_s is None:
            window_s = min(max(pair_s / (2 * rounds), SHORT_WINDOW_S), USUAL_WINDOW_S)
        steps = max(LEAST_WINDOW_STEPS, round(window_s / step_s))
        if self.rounds is None:
            rounds = min(max(round(pair_s / (2 * steps * step_s)), FEW_ROUNDS), USUAL_ROUNDS)
        return rounds, steps


CONFIRMING_PAIRS = 2
"""Pairs of fresh processes that a lever has to pass after its first one, before it is kept."""

PLANNED_TRIALS = 5
"""Levers that a short budget should have time for, one of them with its proof."""

RESERVE_FACTOR = 1.25
"""Time to set aside, relative to the last time: machines may become busier."""

FRESH_STARTS = 1.5
"""Time until two processes have started at once, relative to one."""


class Budget:
    """The time budget of a tuning, which starts now.

    Attributes:
        start_s: Time that a process of the unchanged training takes to start.
        trial_s: Time of a trial of the unchanged training, including that start.
    """

    def __init__(self, minutes: float) -> None:
        self.total_s = minutes * 60
        self.start_s = self.trial_s = self._reserve_s = 0.0
        self._began_s = time.monotonic()

    def spent_s(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began_s

    def left_s(self) -> float:
        """Return the seconds that remain; negative once the budget is overdrawn."""
        return self.total_s - self.spent_s()

    def pair_s(self, start_s: float) -> float:
        """Return the time for the windows of a pair with which the budget suffices to prove a lever.

        So many pairs are to come: two of the unchanged training, the trials, and those of fresh processes.
        """
        trials, fresh = 2 + PLANNED_TRIALS, CONFIRMING_PAIRS + 1
        return (self.left_s() / RESERVE_FACTOR - start_s * (trials + FRESH_STARTS * fresh)) / (trials + fresh)

    def unreserved_s(self) -> float:
        """Return the seconds that remain, apart from those that are set aside."""
        return self.left_s() - self._reserve_s

    def kept_took(self, trial_s: float) -> None:
        """Set time aside to measure the kept levers once more, in two fresh processes, and to check their patch.

        One that compiles takes longer to start, so this takes the time of the trial of the kept lever.
        """
        self._reserve_s = max(self._reserve_s, self._fresh_s(trial_s) + self._check_s())

    def _fresh_s(self, trial_s: float) -> float:
        return RESERVE_FACTOR * (trial_s + (FRESH_STARTS - 1) * self.start_s)

    def _check_s(self) -> float:
        return RESERVE_FACTOR * self.start_s

    def allows_proof(self, trial_s: float, *, alone: bool) -> bool:
        """Return whether there is time to confirm a lever after a first pair of `trial_s`, and for the rest.

        That is the last pair and the check of the patch. The first lever that is kept, `alone`, can do without the last
        pair: its own pairs show the same.
        """
        pair_s, check_s = self._fresh_s(trial_s), self._check_s()
        rest_s = check_s if alone else max(self._reserve_s, pair_s + check_s)
        return self.left_s() >= CONFIRMING_PAIRS * pair_s + rest_s

    def share_s(self) -> float:
        """Return the most time that one trial may take: a lever that hangs must leave time for others."""
        return max(min(2 * self.trial_s, self.unreserved_s()), self.unreserved_s() / 2)
