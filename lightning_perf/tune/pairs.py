"""Measure settings of a training against each other, in pairs of processes: side by side, or one after the other."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from lightning_perf.tune.errors import TrialError, is_out_of_memory
from lightning_perf.tune.measurement import Measurement, measure, measure_in_turn
from lightning_perf.tune.messages import Order, Window
from lightning_perf.tune.progress import Progress
from lightning_perf.tune.runner import Runner
from lightning_perf.tune.settings import Budget, TuneSettings

MEMORY_MARGIN = 1.1
"""Free device memory over a training's own, from which on a second one fits next to it."""

TAKES_TURNS = (
    "The device's memory does not hold two trainings at a time, so they ran one after the other. Changes in the "
    "machine's speed disturb such figures more."
)


def _fills_memory(window: Window) -> bool:
    """Return whether the device has no room for a second training, if it tells."""
    if window.peak_bytes is None or window.free_bytes is None:
        return False
    return window.free_bytes < MEMORY_MARGIN * window.peak_bytes


@dataclass(frozen=True)
class Pair:
    """Two trainings that were measured against each other.

    Attributes:
        start_s: Time that the candidate's process took to start.
        took_s: Time of the measurement without that start.
    """

    measurement: Measurement
    base_losses: tuple[float, ...]
    losses: tuple[float, ...]
    start_s: float
    took_s: float


class Pairs:
    """Measures pairs, and keeps the process of the best setting running between them."""

    def __init__(
        self,
        order_for: Callable[[tuple[str, ...], int], Order],
        settings: TuneSettings,
        budget: Budget,
        progress: Progress,
    ) -> None:
        self._order_for = order_for
        self._settings, self._budget, self._progress = settings, budget, progress
        self._random = random.Random(settings.seed)
        self._best: Runner | None = None
        self._takes_turns = False
        self.steps = 0
        self.notes: list[str] = []

    def calibrate(self) -> float:
        """Find the length of a window with the unchanged training; return the time that its process took to start."""
        best = self._running(())
        self.steps = best.steps_for(self._settings.window_s)
        if best.last is not None and _fills_memory(best.last):
            self._take_turns()
        return best.start_s

    def close(self) -> None:
        """End the running process."""
        best, self._best = self._best, None
        if best is not None:
            best.close()

    def measure(
        self,
        base: tuple[str, ...],
        candidate: tuple[str, ...],
        *,
        seed: int = 0,
        fresh: bool = False,
        left_s: Callable[[], float] | None = None,
        by_sample: bool = False,
        may_give_up: bool = False,
        name: str = "",
    ) -> Pair:
        """Measure the candidate's levers against those of the base, side by side if the memory holds both.

        The base is the running process unless it has to be fresh, too. The seed of the candidate adds to that of the
        tuning, and `left_s` returns the seconds that it may still take.
        """
        name = name or (candidate[-1] if candidate else "unchanged training")
        self._progress.doing(f"{name}: starting")
        how: dict[str, Any] = {
            "steps": self.steps,
            "rounds": self._settings.rounds,
            "by_sample": by_sample,
            "on_round": lambda number: self._progress.doing(f"{name}: round {number} of {self._settings.rounds}"),
        }
        began = time.monotonic()

        def start_base() -> Runner:
            return Runner(self._order_for(base, 0), self._budget.left_s)

        def start_candidate() -> Runner:
            return Runner(self._order_for(candidate, seed), left_s or self._budget.left_s)

        def finished(measurement: Measurement, one: Runner, other: Runner) -> Pair:
            took_s = time.monotonic() - began - other.start_s
            return Pair(measurement, tuple(one.losses), tuple(other.losses), other.start_s, took_s)

        if not self._takes_turns:
            one = start_base() if fresh else self._running(base)
            try:
                return finished(*self._side_by_side(one, start_candidate, may_give_up=may_give_up, **how))
            except TrialError as error:
                if not is_out_of_memory(error):
                    raise
            finally:
                if fresh:
                    one.close()
        self.close()  # from here on only one of them is in memory
        try:
            pair = finished(*measure_in_turn(start_base, start_candidate, **how))
        except TrialError as error:
            if is_out_of_memory(error):
                raise TrialError(f"{error} (with no other training in memory)") from error
            raise
        if not candidate and not self._takes_turns:
            self._take_turns()  # the unchanged training does not fit next to itself
        return pair

    def _side_by_side(
        self, base: Runner, start_candidate: Callable[[], Runner], **how: Any
    ) -> tuple[Measurement, Runner, Runner]:
        try:
            with closing(start_candidate()) as other:
                return measure(base, other, order=self._random, **how), base, other
        except TrialError as error:
            if base.failed and not is_out_of_memory(error):
                raise TrialError(f"the training that it was compared with failed: {error}") from error
            raise

    def _running(self, levers: tuple[str, ...]) -> Runner:
        """Return the running process if it trains with these levers and has not failed, else a new one."""
        if self._best is not None and (self._best.failed or self._best.levers != levers):
            self.close()
        if self._best is None:
            self._best = Runner(self._order_for(levers, 0), self._budget.left_s)
        return self._best

    def _take_turns(self) -> None:
        self._takes_turns = True
        self.notes.append(TAKES_TURNS)
        self._progress.say(f"  {TAKES_TURNS}")
