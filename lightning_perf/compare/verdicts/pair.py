"""Pair the runs of two arms, and compare them in one metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lightning_perf.compare.records.metrics import METRICS, QUALITY_METRICS, Scale
from lightning_perf.compare.records.record import RunRecord
from lightning_perf.compare.verdicts.comparison import MetricResult, Run
from lightning_perf.compare.verdicts.sessions import find_sessions, session_means
from lightning_perf.statistics.collapse import CollapseCounts
from lightning_perf.statistics.describe import describe
from lightning_perf.statistics.location import (
    Difference,
    interval,
    paired_difference,
    paired_ratio,
    unpaired_difference,
    unpaired_ratio,
)
from lightning_perf.statistics.permutation import sign_flip_test, two_sample_test
from lightning_perf.statistics.power import minimal_detectable_effect
from lightning_perf.statistics.ranks import MAX_RUNS, hodges_lehmann_shift, signed_rank_test, walsh_interval
from lightning_perf.statistics.values import Estimate, Probability, finite

__all__ = ["Pair", "Values", "compare_metric", "logarithms"]

ONE_SESSION = "the arms did not alternate, so a change of the machine could cause the same difference"

RANK_BLOCKS = 10
"""From this number of blocks on, ratios of times use the signed-rank interval instead of Student's t.

A fixed number, so the choice does not depend on the data. It comes from simulations of nine kinds of noise, see
``benchmarks/results/verdict_noise.md``. With fewer blocks the rank interval detects less on average. With more it
detects up to twice as much where some runs are outliers, and loses little elsewhere."""

Values = list[float | None]


class Pair:
    """The runs of a baseline and a candidate, paired by block if there are blocks.

    Args:
        baseline: Name of the baseline.
        candidate: Name of the candidate.
        points: The used runs of each arm.
        records: Their records.
        blocked: Whether runs are paired by block. Blocks that lack a run of either arm are left out.
        confidence: Coverage of the pair's intervals.
        independent: Whether to treat runs outside of blocks as independent, even if they are from one session.
    """

    def __init__(
        self,
        baseline: str,
        candidate: str,
        points: Mapping[str, Sequence[Run]],
        records: Mapping[str, Sequence[RunRecord]],
        blocked: bool,
        confidence: float,
        independent: bool = False,
    ) -> None:
        self.baseline, self.candidate = baseline, candidate
        self.blocked, self.confidence = blocked, confidence
        self.points = [list(points[baseline]), list(points[candidate])]
        self.records = [list(records[baseline]), list(records[candidate])]
        self.sessions = None if blocked or independent else find_sessions(*self.records)
        if blocked:
            common = {p.block for p in self.points[0]} & {p.block for p in self.points[1]}
            self.points = [
                sorted((p for p in ps if p.block in common), key=lambda p: p.block or 0) for ps in self.points
            ]
            self.records = [
                sorted(
                    (r for r in rs if r.place and r.place.block in common),
                    key=lambda r: r.place.block if r.place else 0,
                )
                for rs in self.records
            ]

    def values(self, metric: str, *, of_collapsed: float | None = None) -> tuple[Values, Values]:
        """Return one value per run, for both arms.

        Args:
            metric: The metric.
            of_collapsed: For a quality metric, the value to use for a collapsed run; None leaves the run out.
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
                estimate = unpaired_ratio(*self.by_session(metric, base, candidate), self.confidence)
                if estimate.low is None and self.is_one_session and METRICS[metric].is_timed:
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
        ranks = walsh_interval(_gaps(logarithms(base), logarithms(candidate)), self.confidence)
        # Ranks are discrete, so the interval covers a little more than the confidence.
        return replace(ranks.map(math.exp), confidence=self.confidence) if ranks.low is not None else estimate

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


def compare_metric(pair: Pair, name: str) -> MetricResult | None:
    """Compare two arms in one metric.

    Args:
        pair: The arms.
        name: The metric's name.

    Returns:
        The result, or None if an arm has no value.
    """
    metric = METRICS[name]
    base, candidate = pair.values(name)
    if not len(finite(base)) or not len(finite(candidate)):
        return None
    summaries = describe(base), describe(candidate)
    estimate = pair.estimate(name)
    if metric.scale is Scale.RATIO:
        base, candidate = (logarithms(values) for values in pair.by_session(name, base, candidate))
    deterministic = all(summary.constant and not summary.missing for summary in summaries)
    if name == "time_to_accuracy" and (summaries[0].missing or summaries[1].missing):
        # Leaving out the runs that missed the goal would favor the arm that misses it more often.
        reason = "not every run reached the goal; the median of each arm treats such runs as censored"
        unknown = Estimate(None, None, None, pair.confidence, estimate.n, estimate.method, reason)
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
    return MetricResult(name, estimate, exact, robust, deterministic, detectable)


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
