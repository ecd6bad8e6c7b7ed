"""A comparison in sentences: what came out, how sure it is, and what would make it surer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lightning_perf.compare.comparison import MetricResult, Verdict, VerdictKind
from lightning_perf.compare.metrics import METRICS
from lightning_perf.compare.statistics.margins import Kept, NonInferiority
from lightning_perf.compare.statistics.power import blocks_needed, minimal_detectable_effect
from lightning_perf.compare.statistics.values import Estimate

__all__ = ["classify", "signed_percent", "two_digits", "word_verdict"]

TIMES = ("step_time", "train_time")
"""Metrics that decide the verdict: the first that the runs have."""

EXACT_BLOCKS = 6
"""Fewest blocks with which an exact paired test can reach p < 0.05."""


def classify(ratio: Estimate, equivalence: float) -> VerdictKind:
    """Sort a ratio of times by its interval.

    Args:
        ratio: Candidate / baseline.
        equivalence: Times within this share of each other are equivalent, even if they are not equal.

    Returns:
        The kind of verdict.

    Example:
        >>> classify(Estimate(0.94, 0.93, 0.95, 0.95, 6, "paired t"), 0.01).value
        'faster'
    """
    if ratio.low is None or ratio.high is None:
        return VerdictKind.INCONCLUSIVE
    if 1 / (1 + equivalence) <= ratio.low and ratio.high <= 1 + equivalence:
        return VerdictKind.EQUIVALENT
    if ratio.high < 1:
        return VerdictKind.FASTER
    return VerdictKind.SLOWER if ratio.low > 1 else VerdictKind.INCONCLUSIVE


def word_verdict(
    *,
    baseline: str,
    candidate: str,
    results: Sequence[MetricResult],
    accuracy: NonInferiority | None,
    accuracy_change: float | None,
    collapsed: tuple[int, int, int, int] | None,
    blocked: bool,
    equivalence: float,
) -> Verdict:
    """Put a candidate's results into words.

    Args:
        baseline: The baseline's name.
        candidate: The candidate's name.
        results: Its results.
        accuracy: Whether accuracy was kept; None without accuracy.
        accuracy_change: Mean change of the accuracy, or None.
        collapsed: Collapsed runs and runs of the baseline, then of the candidate; None without accuracy.
        blocked: Whether runs are paired.
        equivalence: Times within this share of each other are equivalent.

    Returns:
        The verdict.
    """
    by_name = {result.metric: result for result in results}
    time = next((by_name[name] for name in TIMES if name in by_name), None)
    details = _accuracy_details(accuracy, accuracy_change, collapsed)
    if time is None or time.estimate.value is None:
        reason = time.estimate.reason if time else "the runs have no times"
        return Verdict(VerdictKind.INCONCLUSIVE, f"Inconclusive: {reason}.", tuple(details), None)
    kind = classify(time.estimate, equivalence)
    details += _certainty_details(time, blocked)
    return Verdict(
        kind,
        _headline(kind, baseline, candidate, time, equivalence),
        tuple(details),
        _next(kind, time, accuracy, blocked),
    )


def _headline(kind: VerdictKind, baseline: str, candidate: str, time: MetricResult, equivalence: float) -> str:
    ratio, title = time.estimate, METRICS[time.metric].title
    change = f"{title} {signed_percent(ratio.value)}"
    if ratio.low is None or ratio.high is None:
        return f"Inconclusive: {candidate} against {baseline} has {change} without an interval, since {ratio.reason}."
    ends = f"{signed_percent(ratio.low)} to {signed_percent(ratio.high)}"
    change += f" ({100 * ratio.confidence:.3g} % interval {ends})"
    speed_up = ratio.map(lambda value: 1 / value)
    speed = f"a speed-up of {speed_up.value:.3f} ({speed_up.low:.3f} to {speed_up.high:.3f})"
    if kind is VerdictKind.FASTER:
        return f"{candidate} is faster than {baseline}: {change}, {speed}."
    if kind is VerdictKind.SLOWER:
        return f"{candidate} is slower than {baseline}: {change}, {speed}."
    if kind is VerdictKind.EQUIVALENT:
        return f"{candidate} is as fast as {baseline}: {change}, all within ±{100 * equivalence:.3g} %; {speed}."
    return f"Inconclusive whether {candidate} is faster than {baseline}: {change}, {speed}."


def _accuracy_details(
    accuracy: NonInferiority | None, change: float | None, collapsed: tuple[int, int, int, int] | None
) -> list[str]:
    details = []
    more_collapsed = collapsed is not None and collapsed[2] * collapsed[1] > collapsed[0] * collapsed[3]
    if accuracy is not None:
        margin = f"margin {100 * accuracy.margin:.3g} points"
        if accuracy.lower_bound is None or accuracy.upper_bound is None:
            details.append(f"Accuracy undecided: {accuracy.reason}.")
        elif accuracy.kept is Kept.KEPT:
            kept = "Accuracy of the runs that learned is kept" if more_collapsed else "Accuracy kept"
            details.append(f"{kept}: {_points(change)}, at the least {_points(accuracy.lower_bound)} ({margin}).")
        elif accuracy.kept is Kept.LOST:
            details.append(f"Accuracy lost: {_points(change)}, at the best {_points(accuracy.upper_bound)} ({margin}).")
        else:
            bounds = f"{_points(accuracy.lower_bound)} to {_points(accuracy.upper_bound)}"
            details.append(f"Accuracy undecided: {_points(change)}, somewhere from {bounds} ({margin}).")
    if collapsed is not None and (collapsed[0] or collapsed[2]):
        base, base_runs, candidate, candidate_runs = collapsed
        details.append(
            f"Collapsed runs: {candidate} of {candidate_runs}, in the baseline {base} of {base_runs}; "
            "they are counted here and not in the accuracy."
        )
    return details


def _certainty_details(time: MetricResult, blocked: bool) -> list[str]:
    details = []
    unit = "blocks" if blocked else "runs an arm"
    if time.exact.p is not None and time.exact.n > 1:
        floor = ""
        if time.exact.smallest is not None and time.exact.smallest > 0.05:
            floor = f" (no smaller one is possible than {time.exact.smallest:.3g} with {time.exact.n} {unit})"
        details.append(f"{time.exact.n} {unit}, {time.exact.method}: p = {time.exact.p:.3g}{floor}.")
    if time.detectable is not None:
        details.append(
            f"Runs of this spread show a difference of {two_digits(100 * time.detectable)} % with 80 % power."
        )
    return details


def _next(kind: VerdictKind, time: MetricResult, accuracy: NonInferiority | None, blocked: bool) -> str | None:
    if not blocked:
        return "Run both in the blocks of one study: then a drift of the machine hits both alike."
    if time.estimate.n < 2:
        return f"Run a study of {EXACT_BLOCKS} blocks."
    if kind is VerdictKind.INCONCLUSIVE and time.estimate.value is not None and time.detectable is not None:
        needed = _blocks_for(time)
        if needed is None:
            return "The difference seen is too small beside the spread for any study of reasonable size to show."
        return (
            f"If the difference is as large as it looks, a new study of {needed} blocks shows it with 80 % power. "
            "Plan it anew: adding blocks until a result appears finds differences that are not there."
        )
    if time.estimate.n < EXACT_BLOCKS:
        return f"{EXACT_BLOCKS} blocks or more let the exact test confirm it without assuming a distribution."
    if accuracy is not None and accuracy.kept is Kept.UNDECIDED:
        return "More blocks, or a wider margin declared beforehand, decide whether accuracy is kept."
    return None


def _blocks_for(time: MetricResult) -> int | None:
    effect = minimal_detectable_effect(time.estimate.n, confidence=time.estimate.confidence)
    if effect is None or time.detectable is None or time.estimate.value is None:
        return None
    sd = math.log1p(time.detectable) / effect
    return blocks_needed(abs(math.log(time.estimate.value)) / sd, confidence=time.estimate.confidence)


def signed_percent(ratio: float | None) -> str:
    """A ratio as a signed change.

    Example:
        >>> signed_percent(0.94), signed_percent(1.5), signed_percent(1.0), signed_percent(0.998)
        ('−6.0 %', '+50.0 %', '±0 %', '−0.20 %')
    """
    if ratio is None:
        return "–"
    change = 100 * (ratio - 1)
    if abs(change) < 0.005:
        return "±0 %"
    digits = 0 if abs(change) >= 99.95 else 1 if abs(change) >= 0.995 else 2
    return f"{'+' if change > 0 else '−'}{abs(change):.{digits}f} %"


def two_digits(number: float) -> str:
    """A number with two digits, or all those before the point.

    Example:
        >>> two_digits(0.8512), two_digits(12.6), two_digits(331.4)
        ('0.85', '13', '331')
    """
    return f"{number:.0f}" if abs(number) >= 9.95 else f"{number:.2g}"


def _points(share: float | None) -> str:
    return "–" if share is None else f"{'−' if share < 0 else '+'}{abs(100 * share):.2f} points"
