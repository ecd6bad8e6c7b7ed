"""Time until a goal that not every run reaches. A run that ended first is censored, not slow and not missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_perf.statistics.distributions import scipy_stats
from lightning_perf.statistics.values import Probability


@dataclass(frozen=True)
class ReachTime:
    """The time at which one run reached the goal.

    Attributes:
        time_s: Training time at which it did, or at which the run ended without it.
    """

    time_s: float
    reached: bool


def kaplan_meier_median(runs: Sequence[ReachTime]) -> float | None:
    """Time by which half of the runs have reached the goal (Kaplan & Meier, 1958).

    Returns:
        Seconds, or None if too few runs reached it for a median.

    Example:
        >>> kaplan_meier_median([ReachTime(30, True), ReachTime(40, True), ReachTime(60, False)])
        40
    """
    share = 1.0
    for time in sorted({run.time_s for run in runs if run.reached}):
        at_risk = sum(run.time_s >= time for run in runs)
        share *= 1 - sum(run.reached and run.time_s == time for run in runs) / at_risk
        if share <= 0.5 + 1e-12:
            return time
    return None


def first_to_reach(base: Sequence[ReachTime | None], candidate: Sequence[ReachTime | None]) -> Probability:
    """Sign test over blocks: which of a block's two runs reached the goal first.

    A run that reached it beats a run that had not by that time. A block does not count if neither did, or if one run
    reached it after the other had ended.
    """
    method = "sign test over blocks"
    if len(base) != len(candidate):
        return Probability(None, 0, method, reason="the arms have different numbers of runs: they cannot be paired")
    pairs = [(b, c) for b, c in zip(base, candidate, strict=True) if b is not None and c is not None]
    won, lost = sum(_beats(c, b) for b, c in pairs), sum(_beats(b, c) for b, c in pairs)
    n = won + lost
    if not n:
        return Probability(None, 0, method, reason="no block has a run that reached the goal first")
    p = float(scipy_stats().binomtest(won, n).pvalue)
    return Probability(p, n, method, smallest=2 / 2**n)


def _beats(one: ReachTime, other: ReachTime) -> bool:
    # A miss at the very same time is later, as in Kaplan and Meier's estimate.
    return one.reached and (one.time_s < other.time_s or (one.time_s == other.time_s and not other.reached))
