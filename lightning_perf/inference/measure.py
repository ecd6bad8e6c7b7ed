"""Latency and throughput: variants take turns, so that drift hits all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.messages import Time, Timed
from lightning_perf.statistics.ranks import walsh_ratio
from lightning_perf.statistics.values import Estimate

__all__ = ["Effort", "Latency", "Rounds", "Timer", "speedup", "summarise", "take_turns"]

Timer = Callable[[Time], Timed]
"""Times calls of one variant."""

P99_CALLS = 100
"""A 99th percentile of fewer calls is the slowest of them, and says nothing of one in a hundred."""

P90_CALLS = 10


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured.

    Attributes:
        seconds: Time for each variant, batch size and number of threads.
        rounds: Turns of each variant in that time.
        warmup: Untimed calls before the first turn.
        rewarm: Untimed calls before each later turn: others ran in between, and the caches are theirs.
        least_calls: Timed calls a turn, also when they take longer.
        most_calls: Timed calls a turn at most.
    """

    seconds: float = 3.0
    rounds: int = 10
    warmup: int = 10
    rewarm: int = 2
    least_calls: int = 2
    most_calls: int = 1000


@dataclass(frozen=True)
class Latency:
    """What calls of one variant took, with one batch size and number of threads.

    Attributes:
        threads: CPU threads.
        batch: Inputs a call.
        calls: Timed calls.
        p10_ms: 10th percentile of the calls' wall time.
        p50_ms: Median.
        p90_ms: 90th percentile; None below 10 calls.
        p99_ms: 99th percentile; None below 100 calls.
        cpu_ms: Median of the process's CPU time a call, all threads together.
        device_ms: Median of the time between events on the device; None on a CPU.
        throughput: Inputs a second, of all timed calls together.
        speedup: How many times as fast as the baseline, with its interval (`speedup`); None for the baseline.
    """

    threads: int
    batch: int
    calls: int
    p10_ms: float
    p50_ms: float
    p90_ms: float | None
    p99_ms: float | None
    cpu_ms: float
    device_ms: float | None
    throughput: float
    speedup: Estimate | None


@dataclass(frozen=True)
class Rounds:
    """The turns of one variant: a `Timed` a round."""

    turns: tuple[Timed, ...]

    @property
    def medians_ns(self) -> list[float]:
        """Median wall time of each turn."""
        return [float(np.median(turn.wall_ns)) for turn in self.turns]


def take_turns(
    timers: Mapping[str, Timer],
    batch: int,
    effort: Effort,
    failed: Callable[[str, VariantError], None],
) -> dict[str, Rounds]:
    """Time variants in turns.

    Every second round goes the other way round, so that no variant always runs behind the same one.

    Args:
        timers: A timer by variant.
        batch: Inputs a call.
        effort: How much.
        failed: Is told of a variant that fails; the others go on without it.

    Returns:
        The turns of those that did not fail.
    """
    turns: dict[str, list[Timed]] = {name: [] for name in timers}
    for number in range(effort.rounds):
        warmup = effort.rewarm if number else effort.warmup
        order = Time(batch, warmup, effort.seconds / effort.rounds, effort.least_calls, effort.most_calls)
        for name in _order(turns, number):
            try:
                turns[name].append(timers[name](order))
            except VariantError as error:  # noqa: PERF203  (a turn takes much longer)
                del turns[name]
                failed(name, error)
    return {name: Rounds(tuple(times)) for name, times in turns.items()}


def _order(names: Mapping[str, object], number: int) -> Iterator[str]:
    yield from (reversed(list(names)) if number % 2 else list(names))


def summarise(rounds: Rounds, baseline: Rounds | None, *, batch: int, threads: int) -> Latency:
    """Reduce a variant's turns to figures.

    Args:
        rounds: Its turns.
        baseline: Those of the baseline in the same rounds; None for the baseline itself.
        batch: Inputs a call.
        threads: CPU threads.
    """
    walls = _joined([turn.wall_ns for turn in rounds.turns])
    devices = _joined([turn.device_ns for turn in rounds.turns])
    p10, p50, p90, p99 = (float(value) / 1e6 for value in np.percentile(walls, (10, 50, 90, 99)))
    return Latency(
        threads=threads,
        batch=batch,
        calls=len(walls),
        p10_ms=p10,
        p50_ms=p50,
        p90_ms=p90 if len(walls) >= P90_CALLS else None,
        p99_ms=p99 if len(walls) >= P99_CALLS else None,
        cpu_ms=float(np.median(_joined([turn.cpu_ns for turn in rounds.turns]))) / 1e6,
        device_ms=float(np.median(devices)) / 1e6 if len(devices) else None,
        throughput=batch * len(walls) / (float(walls.sum()) / 1e9),
        speedup=speedup(rounds, baseline) if baseline is not None else None,
    )


def speedup(rounds: Rounds, baseline: Rounds) -> Estimate:
    """Return how many times as fast one variant is as another, by their median times in the same rounds.

    Args:
        rounds: The turns of one variant.
        baseline: Those of the other, in the same rounds.
    """
    return walsh_ratio(rounds.medians_ns, baseline.medians_ns)


def _joined(parts: Sequence[Sequence[int]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([value for part in parts for value in part], dtype=np.int64)
