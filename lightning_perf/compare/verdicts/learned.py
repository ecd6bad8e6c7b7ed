"""Judge whether a candidate still learns: its quality against a margin, and its diverged or collapsed runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.compare.records.metrics import Quality, is_broken
from lightning_perf.compare.records.record import RunRecord
from lightning_perf.compare.verdicts.pair import Pair
from lightning_perf.statistics.collapse import LEAST_DROP, CollapseCounts, baseline_limit, collapse_limit
from lightning_perf.statistics.location import Difference, Kept, NonInferiority, non_inferiority
from lightning_perf.statistics.values import Numbers, finite


class Learned(Struct, frozen=True):
    """The judgement whether a candidate still learns.

    Attributes:
        kept: Whether the quality is kept within the margin, as a share: of 1 for an accuracy, of the baseline's mean
            otherwise. Positive is better. None if the baseline's mean is zero or missing.
        change: The mean change in the same shares over the runs that learned, or None.
        diverged: Whether so many more of the candidate's runs collapsed that this is not chance.
    """

    quality: Quality
    kept: NonInferiority | None
    change: float | None
    collapsed: CollapseCounts
    diverged: bool


def quality_limit(quality: Quality, baseline: Numbers, everything: Numbers) -> float | None:
    """Derive the collapse limit from the values of a quality in the baseline and in all runs; None with too few runs.

    For an accuracy it is the higher one of the limits by all runs and by the baseline.
    """
    if not quality.is_accuracy:
        return baseline_limit(baseline, higher_is_better=quality.higher_is_better)
    limits = (collapse_limit(everything), baseline_limit(baseline, least=LEAST_DROP))
    return max((limit for limit in limits if limit is not None), default=None)


def has_collapsed(
    run: RunRecord, value: float | None, quality: Quality | None, limit: float | None, baseline: Sequence[RunRecord]
) -> bool:
    """Return whether a run failed to learn: its quality or a loss is nan or inf, or its quality is beyond the limit.

    A run that logged nothing does not count as collapsed.
    """
    if is_broken(run, quality, baseline):
        return True
    if quality is None or limit is None or value is None:
        return False
    return value < limit if quality.higher_is_better else value > limit


def judge_learning(pair: Pair, quality: Quality, limit: float | None, margin: float) -> Learned:
    """Judge whether a candidate still learns.

    A collapsed run is at least as bad as the limit. If more of the candidate's runs collapsed, the quality is therefore
    judged again with these runs counted at the limit. A larger loss then never gets a milder result than a smaller one.
    """
    collapsed = pair.collapsed()
    base, candidate = pair.values(quality.metric)
    scale = _scale(quality, base if len(finite(base)) else [point.values[quality.metric] for point in pair.points[0]])
    if scale is None:
        kept, change = None, None
    else:
        difference = _in_shares(pair.difference(base, candidate), scale)
        kept, change = non_inferiority(difference, margin, pair.confidence), difference.value
    all_collapsed = collapsed.candidate == collapsed.of_candidate
    diverged = collapsed.worse and (all_collapsed or (collapsed.p or 0.0) < 1 - pair.confidence)
    if collapsed.worse and scale is not None and limit is not None and (kept is None or kept.kept is not Kept.LOST):
        at_limit = non_inferiority(
            _in_shares(pair.difference(*pair.values(quality.metric, of_collapsed=limit)), scale),
            margin,
            pair.confidence,
        )
        if at_limit.kept is Kept.LOST:
            kept, diverged = replace(at_limit, lower_bound=None, reason="collapsed runs lost more than the limit"), True
    if diverged and kept is not None:
        kept = replace(kept, kept=Kept.LOST)
    return Learned(quality, kept, change, collapsed, diverged)


def _scale(quality: Quality, base: Numbers) -> float | None:
    """Return the factor that turns a difference into a share, positive if better."""
    if quality.is_accuracy:
        return 1.0
    values = finite(base)
    mean = abs(float(np.mean(values))) if len(values) else 0.0
    if not mean:
        return None
    return 1 / mean if quality.higher_is_better else -1 / mean


def _in_shares(difference: Difference, scale: float) -> Difference:
    value, error = difference.value, difference.standard_error
    return replace(
        difference,
        value=scale * value if value is not None else None,
        standard_error=abs(scale) * error if error is not None else None,
    )
