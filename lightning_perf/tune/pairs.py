"""Measures settings of a training against each other, in pairs of processes: side by side, or one after the other."""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing

from msgspec import Struct

from lightning_perf.statistics.exact import walsh_ratio
from lightning_perf.statistics.values import Estimate
from lightning_perf.tune.errors import TrialError, is_out_of_memory, trial_errors
from lightning_perf.tune.measurement import LEAST_ROUNDS
from lightning_perf.tune.messages import Order, Ready, Run, Window
from lightning_perf.tune.progress import Progress
from lightning_perf.tune.settings import RESERVE_FACTOR, USUAL_ROUNDS, Budget, TuneSettings
from lightning_perf.workers.channel import M
from lightning_perf.workers.process import WorkerProcess

WORKER = "lightning_perf.tune.worker:main"

FIRST_STEPS = 5
"""Steps before the first timed window: compilation, allocators, the first workers."""

BURST_RATIO = 1.5
"""If the longest step takes so many times the mean one, batches come in bursts."""

LOOK_S = 0.4
"""Seconds of training that show the time of a step."""


def start_worker(order: Order, environment: Mapping[str, str] | None = None) -> WorkerProcess:
    """Start a worker process with an order. A script searches modules as under ``python``, not as this process."""
    return WorkerProcess(WORKER, order, path=sys.path if order.script is None else None, environment=environment)


class Runner:
    """A training in its own process, which is measured window by window.

    The process starts at once, so that several can start at a time. `begin` waits for it.

    Attributes:
        losses: The loss of each optimizer step so far.
        start_s: Time that its process took to start, up to the first window that may be timed; 0 before `begin`.
    """

    def __init__(self, order: Order, time_left_s: Callable[[], float]) -> None:
        self.levers = order.levers
        self.losses: list[float] = []
        self.failed = False
        self.last: Window | None = None
        self.start_s = 0.0
        self._burst = 1
        self._time_left_s = time_left_s
        self._began_s = time.monotonic()
        with trial_errors():
            self._worker = start_worker(order)

    def begin(self) -> None:
        """Wait until the training has made its first steps."""
        if self.start_s:
            return
        self._receive(Ready)
        self.window(FIRST_STEPS)
        self.start_s = time.monotonic() - self._began_s

    def window(self, steps: int) -> Window:
        """Train some steps."""
        self.last = window = self._receive(Window, Run(steps))
        self.losses += window.losses
        return window

    def _receive(self, kind: type[M], order: Run | None = None) -> M:
        try:
            with trial_errors():
                if order is not None:
                    self._worker.send(order)
                return self._worker.receive(kind, timeout_s=self._time_left_s())
        except TrialError:
            self.failed = True
            raise

    def step_s(self) -> float:
        """Return the time of a step, by windows that are not used for anything else."""
        began = time.perf_counter()
        steps = FIRST_STEPS
        window = self.window(steps)
        while time.perf_counter() - began < LOOK_S:
            steps *= 2
            window = self.window(steps)
        return window.seconds / window.steps

    def warm_up(self, steps: int) -> None:
        """Train a window that is not timed, and look for bursts in it.

        Worker processes that are too slow deliver their batches at the same time, followed by a wait. Then each timed
        window needs as many batches of each of them.
        """
        workers = self.last.workers if self.last is not None else 0
        window = self.window(max(1, steps // 2, workers))
        waits = window.longest_s * window.steps > BURST_RATIO * window.seconds
        self._burst = max(window.workers, 1) if waits else 1

    def time_a_step_s(self, steps: int, *, by_sample: bool) -> float:
        """Train a window, and return the time per step or per sample."""
        window = self.window(math.ceil(steps / self._burst) * self._burst)
        if not by_sample:
            return window.seconds / window.steps
        if not window.samples:
            raise TrialError("the batches do not show how many samples they have")
        return window.seconds / window.samples

    def close(self) -> None:
        """End the process."""
        self._worker.close()


def least_pair_s(settings: TuneSettings, step_s: float) -> float:
    """Return the time that a pair's steps take at least: the first ones of both sides, and the shortest windows."""
    rounds, steps = settings.windows(step_s, 0.0)
    return 2 * (FIRST_STEPS + steps // 2 + rounds * steps) * step_s


GIVE_UP_ROUNDS = 3
GIVE_UP_RATIO = 1.5
"""If a lever is this much slower in each of the first rounds, its measurement ends."""

MEMORY_MARGIN = 0.1
"""Free device memory, relative to a training's own, that has to remain next to two of them."""

TAKES_TURNS = (
    "The device's memory does not hold two trainings at a time, so they ran one after the other. Changes in the "
    "machine's speed disturb such figures more."
)


def _fills_memory(window: Window | None) -> bool:
    """Return whether two trainings leave too little memory on the device; False if it does not tell."""
    if window is None or window.peak_bytes is None or window.free_bytes is None:
        return False
    return window.free_bytes < MEMORY_MARGIN * window.peak_bytes


class Pair(Struct, frozen=True):
    """Two trainings that were measured against each other.

    Attributes:
        ratio: Time of the candidate divided by that of the base, per step or per sample.
        base_s: Median time of the base.
        given_up: Whether the measurement ended early, since the candidate is far slower.
        start_s: Time that the candidate's process took to start.
        took_s: Time of the measurement without that start.
    """

    ratio: Estimate
    base_s: float
    given_up: bool
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
        self.steps, self.rounds = 0, settings.rounds or USUAL_ROUNDS
        self.notes: list[str] = []

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
        name: str = "",
    ) -> Pair:
        """Measure the candidate's levers against those of the base, side by side if the memory holds both.

        The base is the running process unless it has to be fresh, too. The seed of the candidate adds to that of the
        tuning, and `left_s` returns the seconds that it may still take. When they are over, the rounds so far count if
        they have an interval. The figures do not decide when that is, so they stay unbiased.
        """
        name = name or (candidate[-1] if candidate else "unchanged training")
        self._progress.doing(f"{name}: starting")
        began = time.monotonic()
        left_s = left_s or self._budget.left_s

        def start_base() -> Runner:
            return Runner(self._order_for(base, 0), self._budget.left_s)

        def start_candidate() -> Runner:
            return Runner(self._order_for(candidate, seed), left_s)

        def rounds() -> Iterator[int]:
            for number in range(1, self.rounds + 1):
                self._progress.doing(f"{name}: round {number} of {self.rounds}")
                yield number

        def pair(ratio: Estimate, base_s: float, given_up: bool, one: Runner, other: Runner) -> Pair:
            took_s = time.monotonic() - began - other.start_s
            return Pair(ratio, base_s, given_up, tuple(one.losses), tuple(other.losses), other.start_s, took_s)

        if not self._takes_turns:
            one = start_base() if fresh else self._running(base)
            try:
                with ExitStack() as open_runners:
                    if fresh:
                        open_runners.enter_context(closing(one))
                    other = open_runners.enter_context(closing(start_candidate()))
                    one.begin()
                    other.begin()
                    if candidate or not _fills_memory(other.last):
                        self._choose_windows(one)
                        found = self._side_by_side(
                            one, other, rounds(), left_s, by_sample, may_give_up=bool(candidate) and not fresh
                        )
                        return pair(*found, one, other)
                    self._take_turns()
            except TrialError as error:
                if not is_out_of_memory(error):
                    if one.failed and candidate:
                        raise TrialError(f"the training that it was compared with failed: {error}") from error
                    raise
        self.close()  # from here on only one of them is in memory
        try:
            measured = pair(*self._in_turn(start_base, start_candidate, rounds, by_sample))
        except TrialError as error:
            if is_out_of_memory(error):
                raise TrialError(f"{error} (with no other training in memory)") from error
            raise
        if not candidate and not self._takes_turns:
            self._take_turns()  # the unchanged training does not fit next to itself
        return measured

    def _side_by_side(
        self,
        base: Runner,
        candidate: Runner,
        rounds: Iterator[int],
        left_s: Callable[[], float],
        by_sample: bool,
        *,
        may_give_up: bool,
    ) -> tuple[Estimate, float, bool]:
        """Train alternating windows of both, in random order within a round, so that drift of the machine hits both.

        Returns the ratio, the median time of the base, and whether the candidate was given up as far slower.
        """
        for runner in (candidate, base):
            runner.warm_up(self.steps)
        times: dict[Runner, list[float]] = {base: [], candidate: []}
        began_s = time.monotonic()
        for number in rounds:
            for runner in self._random.sample([base, candidate], 2):
                times[runner].append(runner.time_a_step_s(self.steps, by_sample=by_sample))
            ratios = [theirs / ours for ours, theirs in zip(times[base], times[candidate], strict=True)]
            if may_give_up and number == GIVE_UP_ROUNDS < self.rounds and min(ratios) > GIVE_UP_RATIO:
                reason = f"given up after {number} rounds: each was over {GIVE_UP_RATIO:g} times as slow"
                value = statistics.geometric_mean(ratios)
                ratio = Estimate(value, None, None, 0.95, number, "geometric mean", reason)
                return ratio, statistics.median(times[base]), True
            if number >= LEAST_ROUNDS and left_s() < RESERVE_FACTOR * (time.monotonic() - began_s) / number:
                break
        return walsh_ratio(times[base], times[candidate]), statistics.median(times[base]), False

    def _in_turn(
        self,
        start_base: Callable[[], Runner],
        start_candidate: Callable[[], Runner],
        rounds: Callable[[], Iterator[int]],
        by_sample: bool,
    ) -> tuple[Estimate, float, bool, Runner, Runner]:
        """Train both one after the other, for a device with too little memory for both at a time.

        The base trains half of its windows before the candidate and half after it, so that a steady drift cancels.
        Other disturbances hit one of them only, and the base is two processes: such a figure is worth less than one of
        `_side_by_side`. Returns the same as that, and the first process of the base and the candidate's, which have
        ended.
        """

        def trained(start: Callable[[], Runner], windows: Callable[[], Iterator[int]]) -> tuple[Runner, list[float]]:
            with closing(start()) as runner:
                runner.begin()
                self._choose_windows(runner)
                runner.warm_up(self.steps)
                return runner, [runner.time_a_step_s(self.steps, by_sample=by_sample) for _ in windows()]

        one, before = trained(start_base, lambda: iter(range(self.rounds // 2)))
        other, candidate = trained(start_candidate, rounds)
        _, after = trained(start_base, lambda: iter(range(self.rounds - len(before))))
        base = [*before, *after]
        return walsh_ratio(base, candidate), statistics.median(base), False, one, other

    def _running(self, levers: tuple[str, ...]) -> Runner:
        """Return the running process if it trains with these levers and has not failed, else a new one."""
        if self._best is not None and (self._best.failed or self._best.levers != levers):
            self.close()
        if self._best is None:
            self._best = Runner(self._order_for(levers, 0), self._budget.left_s)
        return self._best

    def _choose_windows(self, runner: Runner) -> None:
        """Choose the windows of all pairs by the first training, the unchanged one, and the budget."""
        if not self.steps:
            self.rounds, self.steps = self._settings.windows(runner.step_s(), self._budget.pair_s(runner.start_s))

    def _take_turns(self) -> None:
        self._takes_turns = True
        self.notes.append(TAKES_TURNS)
        self._progress.say(f"  {TAKES_TURNS}")
