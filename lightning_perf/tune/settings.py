"""`TuneSettings`: how trials are made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning_perf.tune.errors import TuneError
from lightning_perf.tune.ratio import LEAST_ROUNDS, MOST_ROUNDS

__all__ = ["TuneSettings"]


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
