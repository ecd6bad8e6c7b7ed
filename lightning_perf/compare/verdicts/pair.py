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
from lightning_perf.statistics.ranks import hodges_lehmann_shift, walsh_interval
from lightning_perf.statistics.values import Estimate, Probability, finite

__all__ = ["Pair", "Values", "compare_metric", "logarithms"]

ONE_SESSION = "the arms did not alternate, so a change of the machine could cause the same difference"

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
            return paired_ratio(base, candidate, self.confidence, timed=METRICS[metric].is_timed)
        return interval(self.difference(base, candidate), self.confidence)

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
        kept = [b is not None and c is not None for b, c in zip(base, candidate, strict=True)]
        gaps = [(c or 0.0) - (b or 0.0) for b, c, k in zip(base, candidate, kept, strict=True) if k]
        exact, robust = sign_flip_test(gaps), walsh_interval(gaps, pair.confidence)
    else:
        exact, robust = two_sample_test(base, candidate), hodges_lehmann_shift(base, candidate, pair.confidence)
    detectable = _detectable(difference, pair.confidence)
    if metric.scale is Scale.RATIO:
        robust = robust.map(math.exp)
        detectable = _expm1(detectable)
    return MetricResult(name, estimate, exact, robust, deterministic, detectable)


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
