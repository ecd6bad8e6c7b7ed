"""Pair the runs of two arms, check that they did the same work, and compare them in one metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.compare.records.metrics import METRICS, QUALITY_METRICS, Scale
from lightning_perf.compare.records.record import RunRecord
from lightning_perf.compare.verdicts.comparison import MetricResult, Run
from lightning_perf.compare.verdicts.gates import ALLOW_SESSIONS, ALLOW_WORK
from lightning_perf.statistics.collapse import CollapseCounts
from lightning_perf.statistics.exact import (
    MAX_RUNS,
    hodges_lehmann_shift,
    sign_flip_test,
    signed_rank_test,
    two_sample_test,
    walsh_interval,
)
from lightning_perf.statistics.location import (
    Difference,
    interval,
    mean_ratio,
    minimal_detectable_effect,
    paired_difference,
    paired_ratio,
    skewness,
    unpaired_difference,
    unpaired_ratio,
)
from lightning_perf.statistics.values import Estimate, Probability, describe, finite

ONE_SESSION = "the arms did not alternate, so a change of the machine could cause the same difference"

RANK_BLOCKS = 10
"""From this number of blocks on, ratios of times use the signed-rank interval instead of Student's t.

A fixed number, so the choice does not depend on the data. It comes from simulations of nine kinds of noise, see
``benchmarks/results/verdict_noise.md``. With fewer blocks the rank interval detects less on average. With more it
detects up to twice as much where some runs are outliers, and loses little elsewhere."""

MOST_SKEW = 0.6
"""Skewness of the blocks' log ratios from which the signed-rank interval is extended to that of the ratio of means.

A typical ratio does not show rare slow runs: the total time does. The same simulations give the value."""

WITH_MEAN = "Walsh averages, signed-rank interval, extended to that of the ratio of means"

NOT_COMPARABLE = "not comparable"
"""The method of an estimate without an interval, because the arms did different work."""

FAR = 3.5 * 1.4826
"""A block is far from the others beyond so many median absolute deviations (Iglewicz and Hoaglin, 1993)."""

SAME_SHARE = 0.01
"""Samples per step and epochs that differ by a larger share make times incomparable."""

SAME_SAMPLES = 0.1
"""The same for the samples of all steps, which are less certain: the warm-up is not counted."""

Values = list[float | None]


class Pair(Struct, frozen=True):
    """The runs of a baseline and a candidate: by block, or else in the order of their start.

    Attributes:
        points: The runs of both arms that count, the baseline first. Blocks that lack a run of either arm are left out.
        sessions: The session of each run, see `find_sessions`; None where runs count as independent.
        different_work: Metrics that do not compare the same work, with the reason.
    """

    points: tuple[Sequence[Run], ...]
    records: tuple[Sequence[RunRecord], ...]
    blocked: bool
    confidence: float
    sessions: tuple[list[int], list[int]] | None
    different_work: Mapping[str, str]

    def values(self, metric: str, *, of_collapsed: float | None = None) -> tuple[Values, Values]:
        """Return one value per run, for both arms.

        For a quality metric, a collapsed run has the value `of_collapsed`; None leaves it out.
        """
        learned = metric in QUALITY_METRICS
        base, candidate = (
            [of_collapsed if learned and p.collapsed else p.values[metric] for p in points] for points in self.points
        )
        return base, candidate

    def estimate(self, metric: str, *, of_collapsed: float | None = None) -> Estimate:
        """Return the candidate's change in a metric, with the interval for the design; see `values`."""
        base, candidate = self.values(metric, of_collapsed=of_collapsed)
        if METRICS[metric].scale is Scale.RATIO:
            if not self.blocked:
                timed = METRICS[metric].is_timed
                estimate = unpaired_ratio(*self.by_session(metric, base, candidate), self.confidence, timed=timed)
                if estimate.low is None and self.is_one_session and timed:
                    return replace(estimate, value=unpaired_ratio(base, candidate).value, reason=ONE_SESSION)
                return estimate
            return self._ratio(base, candidate, timed=METRICS[metric].is_timed)
        return interval(self.difference(base, candidate), self.confidence)

    def fast_steps(self) -> Estimate | None:
        """Return the ratio of the 25th percentiles of step times; None outside of blocks or on accelerators."""
        base, candidate = ([run.step_p25_ns for run in runs] for runs in self.records)
        if not self.blocked or any(value is None for value in (*base, *candidate)):
            return None
        return self._ratio(base, candidate)

    def uses_ranks(self, metric: str, blocks: int) -> bool:
        """Return whether a metric is judged by the signed-rank interval; see `RANK_BLOCKS`."""
        return self.blocked and METRICS[metric].is_timed and RANK_BLOCKS <= blocks <= MAX_RUNS

    def _ratio(self, base: Values, candidate: Values, *, timed: bool = True) -> Estimate:
        estimate = paired_ratio(base, candidate, self.confidence, timed=timed)
        if not timed or not RANK_BLOCKS <= estimate.n <= MAX_RUNS or estimate.low is None:
            return estimate
        gaps = _gaps(logarithms(base), logarithms(candidate))
        # Ranks are discrete, so the interval covers a little more than the confidence.
        ranks = replace(walsh_interval(gaps, self.confidence).map(math.exp), confidence=self.confidence)
        mean = mean_ratio(base, candidate, self.confidence, paired=True)
        return estimate if ranks.low is None else _with_mean(ranks, mean, skewness(finite(gaps)))

    def collapsed(self) -> CollapseCounts:
        """Count the collapsed runs of both arms."""
        lost = [sum(point.collapsed for point in points) for points in self.points]
        return CollapseCounts(lost[0], len(self.points[0]), lost[1], len(self.points[1]))

    @property
    def is_one_session(self) -> bool:
        """Whether an arm has several runs, all from one session, so that the variation between sessions is unknown."""
        return self.sessions is not None and any(len(set(numbers)) == 1 < len(numbers) for numbers in self.sessions)

    def by_session(self, metric: str, base: Values, candidate: Values) -> tuple[Values, Values]:
        """Return one value per session of a timed metric, the geometric mean of its runs; else one value per run."""
        if self.sessions is None or not METRICS[metric].is_timed:
            return base, candidate
        first, second = (
            session_means(values, numbers) for values, numbers in zip((base, candidate), self.sessions, strict=True)
        )
        return first, second

    def difference(self, base: Values, candidate: Values) -> Difference:
        """Return candidate - baseline, with the standard error for the design."""
        return paired_difference(base, candidate) if self.blocked else unpaired_difference(base, candidate)


def pair_runs(
    points: tuple[Sequence[Run], ...],
    records: tuple[Sequence[RunRecord], ...],
    *,
    blocked: bool,
    confidence: float,
    allow: Collection[str] = (),
) -> Pair:
    """Pair the runs of two arms by block, or put them in the order of their start."""
    sessions = None
    if blocked:
        common = set.intersection(*({point.block for point in of_arm} for of_arm in points))
        points = tuple(
            sorted((p for p in of_arm if p.block in common), key=lambda p: p.block or 0) for of_arm in points
        )
        records = tuple(sorted((run for run in of_arm if _block(run) in common), key=_block) for of_arm in records)
    else:
        records = tuple(sorted(of_arm, key=lambda run: run.started_unix_s) for of_arm in records)
        sessions = None if ALLOW_SESSIONS in allow else find_sessions(*records)
    work = {} if ALLOW_WORK in allow else different_work(*records)
    return Pair(points, records, blocked, confidence, sessions, work)


def different_work(baseline: Sequence[RunRecord], candidate: Sequence[RunRecord]) -> Mapping[str, str]:
    """Return the metrics that do not compare the same work, with the reason."""
    reasons: dict[str, str] = {}
    for metric, what, amount, share in _WORK:
        means = [_mean(amount, runs) for runs in (baseline, candidate)]
        if metric in reasons or means[0] is None or means[1] is None:
            continue
        if abs(math.log(means[1] / means[0])) > math.log1p(share):
            first, second = (f"{mean:.4g}" for mean in means)
            reasons[metric] = f"the runs have {second} {what}, those of the baseline {first}"
    return reasons


def _samples_per_step(run: RunRecord) -> float | None:
    steps = run.steps
    return steps.samples_per_second * steps.mean_ns / 1e9 if steps is not None and steps.samples_per_second else None


def _samples(run: RunRecord) -> float | None:
    of_step = _samples_per_step(run)
    return run.epochs[-1].steps * of_step or None if run.epochs and of_step is not None else None


_WORK: tuple[tuple[str, str, Callable[[RunRecord], float | None], float], ...] = (
    ("step_time", "samples per step", _samples_per_step, SAME_SHARE),
    ("train_time", "epochs", lambda run: float(len(run.epochs)) or None, SAME_SHARE),
    ("train_time", "samples", _samples, SAME_SAMPLES),
)
"""Per row a metric, the name of an amount that its times depend on, the amount, and by which share it may differ."""


def _mean(amount: Callable[[RunRecord], float | None], runs: Sequence[RunRecord]) -> float | None:
    known = [value for run in runs if (value := amount(run)) is not None]
    return sum(known) / len(known) if known and len(known) == len(runs) else None


def _block(run: RunRecord) -> int:
    return run.place.block if run.place else 0


def find_sessions(base: Sequence[RunRecord], candidate: Sequence[RunRecord]) -> tuple[list[int], list[int]]:
    """Number the sessions of two arms: consecutive runs of an arm without a run of the other arm between them.

    A machine is faster on some days than on others. The runs of one session share this, so they are not independent.
    The statistics therefore use one value per session, as in a split-plot design. A run that overlaps in time with one
    of the other arm is a session of its own, since both runs had the same conditions.
    """
    arms = (base, candidate)
    order = sorted((run.started_unix_s, arm, place) for arm in (0, 1) for place, run in enumerate(arms[arm]))
    spans = [(start, start + (arms[arm][place].train_time_s or 0.0), arm) for start, arm, place in order]
    numbers: tuple[list[int], list[int]] = ([0] * len(base), [0] * len(candidate))
    number, before = 0, -1
    for (_, arm, place), overlaps in zip(order, _overlapping(spans), strict=True):
        number += arm != before or overlaps
        numbers[arm][place] = number
        before = -1 if overlaps else arm
    return numbers


def _overlapping(spans: Sequence[tuple[float, float, int]]) -> list[bool]:
    """Return for each run, in order of start, whether it overlaps with a run of the other arm."""
    found = [False] * len(spans)
    for order, sign in ((range(len(spans)), 1), (range(len(spans) - 1, -1, -1), -1)):
        bound = [-math.inf, -math.inf]  # per arm: the last end of earlier runs, or minus the first start of later ones
        for number in order:
            start, end, arm = spans[number]
            edge, reach = (start, end) if sign == 1 else (-end, -start)
            found[number] |= bound[1 - arm] > edge
            bound[arm] = max(bound[arm], reach)
    starts: dict[float, set[int]] = {}
    for start, _, arm in spans:
        starts.setdefault(start, set()).add(arm)
    return [overlaps or len(starts[span[0]]) == 2 for overlaps, span in zip(found, spans, strict=True)]


def session_means(values: Sequence[float | None], numbers: Sequence[int]) -> list[float | None]:
    """Return the geometric mean of each session, from one positive value per run; other values are left out."""
    logs: dict[int, list[float]] = {}
    for value, number in zip(values, numbers, strict=True):
        if value is not None and math.isfinite(value) and value > 0:
            logs.setdefault(number, []).append(math.log(value))
    return [math.exp(sum(of_session) / len(of_session)) for of_session in logs.values()]


def compare_metric(pair: Pair, name: str) -> MetricResult | None:
    """Compare two arms in one metric; None if an arm has no value."""
    metric = METRICS[name]
    base, candidate = pair.values(name)
    if not len(finite(base)) or not len(finite(candidate)):
        return None
    summaries = describe(base), describe(candidate)
    estimate = pair.estimate(name)
    if metric.scale is Scale.RATIO:
        base, candidate = (logarithms(values) for values in pair.by_session(name, base, candidate))
    deterministic = all(summary.constant and not summary.missing for summary in summaries)
    reason, value = pair.different_work.get(name), estimate.value
    if name == "time_to_accuracy" and (summaries[0].missing or summaries[1].missing):
        # Leaving out the runs that missed the goal would favor the arm that misses it more often.
        reason = "not every run reached the goal; the median of each arm treats such runs as censored"
        value = None
    if reason is not None:
        unknown = Estimate(value, None, None, pair.confidence, estimate.n, NOT_COMPARABLE, reason)
        return MetricResult(name, unknown, Probability(None, estimate.n, "none", reason=reason), unknown, False, None)
    difference = pair.difference(base, candidate)
    if pair.blocked:
        gaps = _gaps(base, candidate)
        exact = signed_rank_test(gaps) if pair.uses_ranks(name, len(gaps)) else sign_flip_test(gaps)
        robust = walsh_interval(gaps, pair.confidence)
    else:
        exact, robust = two_sample_test(base, candidate), hodges_lehmann_shift(base, candidate, pair.confidence)
    detectable = _detectable(difference, pair.confidence)
    if metric.scale is Scale.RATIO:
        robust = robust.map(math.exp)
        detectable = _expm1(detectable)
    mean = mean_ratio(*pair.by_session(name, *pair.values(name)), pair.confidence, paired=pair.blocked)
    far = far_blocks(gaps) if pair.blocked and estimate.method == WITH_MEAN else None
    total = mean if metric.is_timed else None
    return MetricResult(name, estimate, exact, robust, deterministic, detectable, total, far)


def far_blocks(gaps: Sequence[float]) -> tuple[int, int]:
    """Count the blocks in which the baseline, and those in which the candidate, was far slower than in the others."""
    apart = np.asarray(gaps) - np.median(gaps)
    limit = FAR * float(np.median(np.abs(apart)))
    return int((apart < -limit).sum()), int((apart > limit).sum())


def _with_mean(ranks: Estimate, mean: Estimate, skew: float) -> Estimate:
    """Extend the interval of the ranks to that of the mean if the blocks are skewed or the two contradict."""
    if ranks.low is None or ranks.high is None or mean.value is None:
        return ranks
    if ranks.low <= mean.value <= ranks.high and abs(skew) <= MOST_SKEW:
        return ranks
    if mean.low is None or mean.high is None:
        return replace(ranks, low=None, high=None, reason=mean.reason)
    return replace(ranks, low=min(ranks.low, mean.low), high=max(ranks.high, mean.high), method=WITH_MEAN)


def _gaps(base: Values, candidate: Values) -> list[float]:
    """Return candidate - baseline of the blocks in which both have a value."""
    return [c - b for b, c in zip(base, candidate, strict=True) if b is not None and c is not None]


def _expm1(logarithm: float | None) -> float | None:
    try:
        return math.expm1(logarithm) if logarithm is not None else None
    except OverflowError:
        return None


def _detectable(difference: Difference, confidence: float) -> float | None:
    if not difference.standard_error or difference.df is None:
        return None
    # The power of a t test depends only on its degrees of freedom and standard error, paired or not.
    size = max(2, round(difference.df) + 1)
    effect = minimal_detectable_effect(size, confidence=confidence)
    return effect * difference.standard_error * math.sqrt(size) if effect is not None else None


def logarithms(values: Sequence[float | None]) -> Values:
    """Return the logarithms of positive values; None for all others."""
    return [math.log(v) if v is not None and math.isfinite(v) and v > 0 else None for v in values]
