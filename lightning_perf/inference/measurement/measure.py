"""Measure latency and throughput of variants in alternating rounds, so that drift of the machine affects all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

from lightning_perf.inference.errors import VariantError
from lightning_perf.statistics.exact import walsh_ratio
from lightning_perf.statistics.values import Estimate
from lightning_perf.workers.channel import Message


class Time(Message, frozen=True):
    """Time calls with a batch of this size, after some untimed ones, for at least this long and this many calls."""

    batch: int
    warmup: int
    seconds: float
    least: int
    most: int


class Timed(Message, frozen=True):
    """Wall time, process CPU time and device time between events (CUDA only) of each call."""

    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]
    device_ns: tuple[int, ...]


Timer = Callable[[Time], Timed]
"""Times calls of one variant."""

Rounds = tuple[Timed, ...]
"""The timed calls of one variant, by round."""

P99_CALLS = 100
"""Fewest calls for a 99th percentile. With fewer calls it would just be the slowest one."""

P90_CALLS = 10
"""Fewest calls for a 90th percentile."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Number and duration of the timed calls.

    Attributes:
        seconds: Time for each variant, batch size and number of threads.
        rounds: Number of rounds in that time; each variant runs once per round.
        warmup: Untimed calls before the first round.
        rewarm: Untimed calls before each later round: other variants ran in between and filled the caches.
        least_calls: Fewest timed calls per round, even if they take longer.
        most_calls: Most timed calls per round.
    """

    seconds: float = 3.0
    rounds: int = 10
    warmup: int = 10
    rewarm: int = 2
    least_calls: int = 2
    most_calls: int = 1000


class Latency(Struct, frozen=True):
    """Latency of one variant with one batch size and number of threads.

    Attributes:
        threads: CPU threads.
        batch: Inputs per call.
        calls: Number of timed calls.
        p10_ms: 10th percentile of the wall time per call.
        p50_ms: Median.
        p90_ms: 90th percentile; None with fewer than 10 calls.
        p99_ms: 99th percentile; None with fewer than 100 calls.
        cpu_ms: Median CPU time of the process per call, summed over all threads.
        device_ms: Median time between events on the device; None on a CPU.
        throughput: Inputs per second, over all timed calls.
        speedup: Speed-up over the baseline, with its interval (`speedup`); None for the baseline.
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

    @property
    def slow_ms(self) -> float:
        """The 90th percentile, or the median if there are too few calls for it."""
        return self.p50_ms if self.p90_ms is None else self.p90_ms


def take_turns(
    timers: Mapping[str, Timer],
    batch: int,
    effort: Effort,
    failed: Callable[[str, VariantError], None],
) -> dict[str, Rounds]:
    """Time variants in alternating rounds, and return the rounds of each one that did not fail.

    Every second round runs in reverse order, so that no variant always follows the same one. `failed` gets each variant
    that fails; the others continue without it.
    """
    turns: dict[str, Rounds] = dict.fromkeys(timers, ())
    for number in range(effort.rounds):
        warmup = effort.rewarm if number else effort.warmup
        order = Time(batch, warmup, effort.seconds / effort.rounds, effort.least_calls, effort.most_calls)
        for name in reversed(list(turns)) if number % 2 else list(turns):
            try:
                turns[name] += (timers[name](order),)
            except VariantError as error:  # noqa: PERF203  (the timed calls take much longer)
                del turns[name]
                failed(name, error)
    return turns


def summarise(rounds: Rounds, baseline: Rounds | None, *, batch: int, threads: int) -> Latency:
    """Summarise the timed calls of a variant; the baseline itself has no baseline."""
    walls = np.concatenate([turn.wall_ns for turn in rounds])
    devices = np.concatenate([turn.device_ns for turn in rounds])
    p10, p50, p90, p99 = (float(value) / 1e6 for value in np.percentile(walls, (10, 50, 90, 99)))
    return Latency(
        threads=threads,
        batch=batch,
        calls=len(walls),
        p10_ms=p10,
        p50_ms=p50,
        p90_ms=p90 if len(walls) >= P90_CALLS else None,
        p99_ms=p99 if len(walls) >= P99_CALLS else None,
        cpu_ms=float(np.median(np.concatenate([turn.cpu_ns for turn in rounds]))) / 1e6,
        device_ms=float(np.median(devices)) / 1e6 if len(devices) else None,
        throughput=batch * len(walls) / (float(walls.sum()) / 1e9),
        speedup=speedup(rounds, baseline) if baseline is not None else None,
    )


def speedup(rounds: Rounds, baseline: Rounds) -> Estimate:
    """Return the speed-up of one variant over another, from their median times in the same rounds."""
    times, base = ([float(np.median(turn.wall_ns)) for turn in turns] for turns in (rounds, baseline))
    return walsh_ratio(times, base)
