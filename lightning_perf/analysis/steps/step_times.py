"""Step times that a run measured without the profiler: their summary, and steps that take longer periodically."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.intervals import outlying
from lightning_perf.analysis.steps.breakdown import DEVICE_CATEGORIES, Breakdown
from lightning_perf.analysis.steps.fit_time import StepGrowth, find_growth
from lightning_perf.run_files.steps import WARMUP_STEPS, StepSample, StepSamples
from lightning_perf.statistics.exact import hodges_lehmann_ratio
from lightning_perf.trace.columns import BoolArray, Int64Array

MIN_STEPS_A_SIDE = 8
"""Steps that each of two parts of a run needs before their medians are compared."""

MAX_OUTLIERS_LISTED = 10

HICCUPS = 2
"""At most so many steps are hiccups: their long waits do not mean that the run waits for data."""


class StepTimes(Struct, frozen=True):
    """The step times of a run, by the always-on timer.

    Percentiles, shares and rates are over the `steps` kept: warm-up and profiled steps are left out.

    Attributes:
        steps: Steps that the figures below are over.
        warmup_steps: Steps left out at the beginning of the run.
        profiled_steps: Profiled steps left out.
        only_profiled: Whether all steps after the warm-up were profiled. The figures are then over those.
        total_ns: Wall time of the kept steps.
        mean_ns: Mean step time.
        p50_ns: Median step time.
        p90_ns: 90th percentile of the step time.
        p99_ns: 99th percentile of the step time.
        data_wait_mean_ns: Mean wait for batches per step.
        data_wait_p90_ns: 90th percentile of the wait for batches.
        data_wait_share: Share of the steps' wall time spent waiting for batches, 0 to 1.
        device_mean_ns: Mean device time per step, waits for batches excluded, over the steps that have it; None if none
            has.
        samples_per_second: Samples over wall time, over the steps that count their samples; None if none does.
        drift: Median step time of the last quarter of the run over that of the first, minus 1. 0.05 means
            that the run became 5 % slower. None if the run is too short.
        after_profiling: Median step time after the last profiled step over that before the first, minus 1; None if
            either part is too short. A profiler that was not torn down leaves training slower. A slowdown that begins
            later is left out.
        outlier_steps: Steps beyond the outlier limit.
        outlier_excess_ns: Their time beyond the median, together.
        outliers: The longest of them, longest first.
        data_wait_share_steady: The same share as `data_wait_share`, without the two steps that waited longest, which
            may be hiccups.
        mean_steady_ns: Mean step time without these two.
        periodic: Steps that take longer at regular distances, or ``None``.
        tokens_per_second: Tokens over wall time, padding included, over the steps that count their tokens; None if none
            does.
        outlier_wait_ns: The part of `outlier_excess_ns` in waits for data; None if unknown.
        growth: Growth of the step time over the run, or ``None``.
        rank: Rank of the steps; ``None`` if unknown.
        data_wait_p50_ns: Median wait for batches; ``None`` in reports of older versions.
        mfu: MFU of these steps; ``None`` if that of the recorded steps is unknown, a range or a lower bound.
    """

    steps: int
    warmup_steps: int
    profiled_steps: int
    only_profiled: bool
    total_ns: int
    mean_ns: int
    p50_ns: int
    p90_ns: int
    p99_ns: int
    data_wait_mean_ns: int
    data_wait_p90_ns: int
    data_wait_share: float
    device_mean_ns: int | None
    samples_per_second: float | None
    drift: float | None
    after_profiling: float | None
    outlier_steps: int
    outlier_excess_ns: int
    outliers: tuple[StepSample, ...]
    data_wait_share_steady: float | None = None
    mean_steady_ns: float | None = None
    periodic: PeriodicSteps | None = None
    tokens_per_second: float | None = None
    outlier_wait_ns: int | None = None
    growth: StepGrowth | None = None
    rank: int | None = None
    data_wait_p50_ns: int | None = None
    mfu: float | None = None

    def of_rank(self, rank: int | None) -> StepTimes | None:
        """Return these step times if they are of a rank and were measured without the profiler, else None."""
        return None if self.only_profiled or (self.rank != rank and None not in (self.rank, rank)) else self


NOTABLE = 1.2
"""Ratio of recorded steps to the run's median step from which they are notably slower."""

LEAST_USUAL_STEPS = 5
"""Steps without the profiler that are needed to know the usual step."""


class UsualStep(Struct, frozen=True):
    """The usual step of a run, for a recording of slower steps. The device does the same work in both.

    Attributes:
        step_ns: Median step time without the profiler.
        busy_ns: Time in which the device works, by the recording.
        idle_ns: The rest of that step, without the wait for input: the most that a busier device saves.
        recorded_idle_ns: The same of a recorded step.
    """

    step_ns: float
    busy_ns: float
    idle_ns: float
    recorded_idle_ns: float


def usual_step(run: StepTimes | None, recorded: Breakdown) -> UsualStep | None:
    """Return the usual step; None if it is unknown, as long as the recorded ones, or too short for their work."""
    if run is None or run.only_profiled or run.steps < LEAST_USUAL_STEPS:
        return None
    if not recorded.marked or not recorded.has_device or recorded.truncated:
        return None
    recorded_ns = recorded.wall.mean_ns or 0.0
    busy_ns = sum(recorded.category(name).mean_ns or 0.0 for name in DEVICE_CATEGORIES)
    if recorded_ns < NOTABLE * run.p50_ns or busy_ns >= run.p50_ns:
        return None
    return UsualStep(
        step_ns=run.p50_ns,
        busy_ns=busy_ns,
        idle_ns=max(0.0, run.p50_ns - busy_ns - (run.data_wait_p50_ns or 0)),
        recorded_idle_ns=recorded_ns - busy_ns - (recorded.category("input").mean_ns or 0.0),
    )


def summarize_step_times(samples: Sequence[StepSample], warmup_steps: int = WARMUP_STEPS) -> StepTimes:
    """Summarize the step samples of one rank, in order."""
    if not samples:
        raise ValueError("no step samples: the run ended before its first step did")
    samples = StepSamples.of(samples)
    warmup = min(warmup_steps, (len(samples) - 1) // 2)
    after_warmup = samples[warmup:]
    only_profiled = bool(after_warmup.profiled.all())
    kept = after_warmup if only_profiled else after_warmup[~after_warmup.profiled]
    step_ns, wait_ns = kept.step_ns, kept.data_wait_ns
    total_ns = int(step_ns.sum())
    device_ns = kept.device_ns[kept.device_ns >= 0]
    p50, p90, p99 = (round(float(value)) for value in np.percentile(step_ns, [50, 90, 99]))
    is_slow_outlier = outlying(step_ns) & (step_ns > p50)
    longest = sorted(np.flatnonzero(is_slow_outlier).tolist(), key=lambda row: -int(step_ns[row]))
    steady = np.argsort(wait_ns, kind="stable")[:-HICCUPS]
    steady_ns = int(step_ns[steady].sum())
    return StepTimes(
        steps=len(kept),
        warmup_steps=warmup,
        profiled_steps=0 if only_profiled else len(after_warmup) - len(kept),
        only_profiled=only_profiled,
        total_ns=total_ns,
        mean_ns=round(total_ns / len(kept)),
        p50_ns=p50,
        p90_ns=p90,
        p99_ns=p99,
        data_wait_mean_ns=round(float(wait_ns.mean())),
        data_wait_p90_ns=round(float(np.percentile(wait_ns, 90))),
        data_wait_p50_ns=round(float(np.median(wait_ns))),
        data_wait_share=float(wait_ns.sum()) / total_ns if total_ns else 0.0,
        device_mean_ns=round(int(device_ns.sum()) / len(device_ns)) if len(device_ns) else None,
        samples_per_second=_per_second(kept.samples, step_ns),
        drift=_change(step_ns[: len(kept) // 4], step_ns[len(kept) - len(kept) // 4 :]),
        after_profiling=_after_profiling(after_warmup),
        outlier_steps=int(is_slow_outlier.sum()),
        outlier_excess_ns=int((step_ns[is_slow_outlier] - p50).sum()),
        outliers=tuple(kept[row] for row in longest[:MAX_OUTLIERS_LISTED]),
        data_wait_share_steady=float(wait_ns[steady].sum()) / steady_ns if steady_ns else None,
        mean_steady_ns=steady_ns / len(steady) if len(steady) else None,
        periodic=find_period(kept.step, step_ns, wait_ns),
        tokens_per_second=_per_second(kept.tokens, step_ns),
        outlier_wait_ns=int(np.maximum(wait_ns[is_slow_outlier] - np.median(wait_ns), 0).sum()),
        growth=find_growth(kept.step, step_ns, wait_ns, kept.tokens if (kept.tokens > 0).all() else kept.samples),
    )


def mfu_of_run(times: StepTimes, mfu: float, recorded_ns: float, tokens_per_second: float | None) -> float | None:
    """Return the MFU of the steps of a run.

    They have the FLOPs of the recorded steps, per token or, without tokens, per step.

    Args:
        mfu: That of the recorded steps.
        recorded_ns: Their mean time.
        tokens_per_second: Their rate.
    """
    if times.only_profiled:
        return None
    if tokens_per_second and times.tokens_per_second is not None:
        return mfu * times.tokens_per_second / tokens_per_second
    return mfu * recorded_ns / times.mean_ns if times.mean_ns else None


def _per_second(amount: Int64Array, step_ns: Int64Array) -> float | None:
    """Return the rate over the steps with a known amount."""
    counted = amount >= 0
    counted_ns = int(step_ns[counted].sum())
    return int(amount[counted].sum()) / counted_ns * 1e9 if counted_ns else None


def _after_profiling(samples: StepSamples) -> float | None:
    profiled = np.flatnonzero(samples.profiled)
    if not len(profiled):
        return None
    return _change(samples.step_ns[: profiled[0]], steps_after(samples.step_ns[profiled[-1] + 1 :]))


COMPARED_STEPS = 50
"""The steps of a window are compared with at most so many before and after it. A run drifts, so the nearest count."""

LATER_CHANGE = 1.02
"""Ratio of two stretches of steps from which the second one is slower for a reason of its own."""


def steps_after(step_ns: Int64Array) -> Int64Array:
    """Return the steps after a window until they get slower once more, which has another reason."""
    step_ns = step_ns[:COMPARED_STEPS]
    if not step_ns.all():
        return step_ns
    until = len(step_ns)
    for near in (MIN_STEPS_A_SIDE, 2 * MIN_STEPS_A_SIDE, 4 * MIN_STEPS_A_SIDE):
        if len(step_ns) - near >= MIN_STEPS_A_SIDE:
            ratio = hodges_lehmann_ratio(step_ns[:near].tolist(), step_ns[near:].tolist())
            until = near if ratio is not None and ratio.low > LATER_CHANGE else until
    return step_ns[:until]


def _change(before: Int64Array, after: Int64Array) -> float | None:
    if min(len(before), len(after)) < MIN_STEPS_A_SIDE:
        return None
    base = float(np.median(before))
    return float(np.median(after)) / base - 1 if base else None


USUAL = 40
"""Percentile of the step time that is the usual step: at a period of 2, the median may be a long one."""

LONGER = 0.25
LONGER_NS = 1_000_000
"""Excess over the usual step from which a step counts as long: a share of it, and a time."""

LIMIT_SCALES = (1, 2, 4, 8)
"""Multiples of that excess that are tried, the smallest first."""

LEAST_LONG = 4
"""Long steps that a period needs."""

MOST_LONG = 0.8
"""Share of the steps of a period that have to be long."""

FEW_LONG = 0.2
"""Share of the other steps that may be long for other reasons."""

CANDIDATES = 5
"""Distances between long steps that are tried as a period, the most frequent first."""

MOST_CHANCE = 0.01
"""Highest chance that long steps without any order fit one of the periods that are tried."""


class PeriodicSteps(Struct, frozen=True):
    """Steps of a run that take longer at regular distances.

    Attributes:
        period: Every how many steps.
        steps: Number of these steps.
        step_ns: Their median step time.
        others_ns: Median time of the other steps.
        wait_ns: Their median wait for data beyond that of the other steps; None if it was not measured.
    """

    period: int
    steps: int
    step_ns: int
    others_ns: int
    wait_ns: int | None = None

    @property
    def per_step_ns(self) -> float:
        """The extra time, divided among all steps."""
        return (self.step_ns - self.others_ns) / self.period

    @property
    def waits(self) -> bool:
        """Whether they are longer because they wait for data."""
        return self.wait_ns is not None and 2 * self.wait_ns >= self.step_ns - self.others_ns


def find_period(number: Int64Array, step_ns: Int64Array, wait_ns: Int64Array) -> PeriodicSteps | None:
    """Find the period of long steps; None if they are few or irregular. Some step numbers may be missing."""
    if len(number) <= LEAST_LONG:
        return None
    usual_ns = float(np.percentile(step_ns, USUAL))
    excess_ns = step_ns - usual_ns
    limit_ns = max(LONGER * usual_ns, LONGER_NS)
    # On a busy machine many steps are somewhat long. A higher limit leaves those with a cause of their own.
    found = (_period_of(number, step_ns, wait_ns, excess_ns > scale * limit_ns) for scale in LIMIT_SCALES)
    return next((periodic for periodic in found if periodic is not None), None)


def _period_of(number: Int64Array, step_ns: Int64Array, wait_ns: Int64Array, long: BoolArray) -> PeriodicSteps | None:
    """Find the period of the steps that are marked as long."""
    if int(long.sum()) < LEAST_LONG:
        return None
    distances = Counter(np.diff(number[long]).tolist())
    for period, _ in distances.most_common(CANDIDATES):
        if period < 2:
            continue
        phase = Counter((number[long] % period).tolist()).most_common(1)[0][0]
        members = number % period == phase
        if int(members.sum()) < LEAST_LONG or not (~members).any():
            continue
        if float(long[members].mean()) < MOST_LONG or float(long[~members].mean()) > FEW_LONG:
            continue
        tried = period * CANDIDATES * len(LIMIT_SCALES)
        chance = tried * _chance(len(long), int(long.sum()), int(members.sum()), int(long[members].sum()))
        if chance <= MOST_CHANCE:
            return PeriodicSteps(
                period=int(period),
                steps=int(members.sum()),
                step_ns=round(float(np.median(step_ns[members]))),
                others_ns=round(float(np.median(step_ns[~members]))),
                wait_ns=max(0, round(float(np.median(wait_ns[members]) - np.median(wait_ns[~members])))),
            )
    return None


def _chance(steps: int, long: int, members: int, found: int) -> float:
    """Return the probability that so many of the members are among the long steps if these are drawn by lot."""

    def ways(of: int, taken: int) -> float:
        return math.lgamma(of + 1) - math.lgamma(taken + 1) - math.lgamma(of - taken + 1)

    most = min(members, long)
    return sum(
        math.exp(ways(members, each) + ways(steps - members, long - each) - ways(steps, long))
        for each in range(max(found, long - (steps - members)), most + 1)
    )
