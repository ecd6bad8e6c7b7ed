"""Describe the results of a candidate in sentences: the verdict, its certainty, and the next step."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from lightning_perf.compare.records.metrics import METRICS, Quality
from lightning_perf.compare.verdicts.comparison import MetricResult, Verdict, VerdictKind
from lightning_perf.compare.verdicts.gates import ALLOW_DIVERGENCE, ALLOW_FAILURES
from lightning_perf.statistics.collapse import CollapseCounts
from lightning_perf.statistics.margins import Kept, NonInferiority
from lightning_perf.statistics.power import blocks_needed, minimal_detectable_effect
from lightning_perf.statistics.values import Estimate
from lightning_perf.units import NOT_AVAILABLE, TENFOLD, format_change, format_factor, format_points, two_digits

__all__ = ["classify", "describe_verdict", "detectable_text"]

TIMES = ("step_time", "train_time")
"""The verdict is decided by the first of these metrics that the runs have."""

EXACT_BLOCKS = 6
"""Smallest number of blocks with which an exact paired test can reach p < 0.05."""


def classify(ratio: Estimate, equivalence: float) -> VerdictKind:
    """Return the verdict for a ratio of times, by its interval.

    Args:
        ratio: Candidate / baseline.
        equivalence: Times within this share of each other are equivalent, even if the interval excludes 1.

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


def describe_verdict(
    *,
    baseline: str,
    candidate: str,
    results: Sequence[MetricResult],
    accuracy: NonInferiority | None,
    accuracy_change: float | None,
    collapsed: CollapseCounts | None,
    blocked: bool,
    equivalence: float,
    quality: Quality | None = None,
    diverged: bool = False,
    unfinished: CollapseCounts | None = None,
    allow: Collection[str] = (),
    busy: Sequence[str] = (),
    fast_steps: Estimate | None = None,
) -> Verdict:
    """Describe a candidate's results: the headline, the details and the next step.

    Args:
        baseline: The baseline's name.
        candidate: The candidate's name.
        results: Its results.
        accuracy: Whether the accuracy, or another quality, was kept; None without one.
        accuracy_change: Its mean change, or None.
        collapsed: Collapsed runs of both arms; None without a quality.
        blocked: Whether runs are paired by block.
        equivalence: Times within this share of each other are equivalent.
        quality: The metric that shows how well runs learned; None means an accuracy.
        diverged: Whether so many more of the candidate's runs collapsed that this is not chance.
        unfinished: Counts for both arms of blocks with a run that did not finish, or of such runs outside a study.
        allow: Entries of `Settings.allow`.
        busy: Sentences on other load on the machine during the runs.
        fast_steps: Ratio of the 25th percentiles of step times, or None.

    Returns:
        The verdict.
    """
    by_name = {result.metric: result for result in results}
    time = next((by_name[name] for name in TIMES if name in by_name), None)
    if quality is None or quality.is_accuracy:
        details = _accuracy_details(accuracy, accuracy_change, collapsed)
    else:
        details = _quality_details(quality, accuracy, accuracy_change, collapsed)
    details = [*busy, *details]
    if unfinished is not None and (unfinished.baseline or unfinished.candidate):
        details.append(f"{'Blocks with a run' if blocked else 'Runs'} that did not finish: {unfinished}.")
    if time is None or time.estimate.value is None:
        reason = time.estimate.reason if time else "the runs have no times"
        kind, headline, next_step = VerdictKind.INCONCLUSIVE, f"Inconclusive: {reason}.", None
        times = f"No verdict on times: {reason}."
    else:
        kind = classify(time.estimate, equivalence)
        details += _certainty_details(time, blocked)
        if kind is VerdictKind.INCONCLUSIVE:
            details += _fast_steps_details(time.estimate, fast_steps)
        headline = _headline(kind, baseline, candidate, time, equivalence)
        # A headline of another verdict must not contain the word "faster", for readers who stop there.
        times = f"Times alone: {_measured(time)}."
        next_step = _next(kind, time, accuracy, blocked)
    if unfinished is not None and unfinished.worse and ALLOW_FAILURES not in allow:
        kind = VerdictKind.UNFINISHED
        what = f"in {_of(unfinished, 'block')}" if blocked else _of(unfinished, "run")
        share = f"{baseline}: {unfinished.baseline} of {unfinished.of_baseline}"
        headline = f"{candidate} did not finish {what} ({share}). {times}"
        next_step = f"Find out why these runs failed. If failures do not matter, add --allow {ALLOW_FAILURES}."
    elif collapsed is not None and collapsed.worse and ALLOW_DIVERGENCE not in allow:
        share = f"{baseline}: {collapsed.baseline} of {collapsed.of_baseline}"
        if diverged:
            kind = VerdictKind.DIVERGED
            headline = f"{candidate} diverged or collapsed in {_of(collapsed, 'run')} ({share}). {times}"
            next_step = f"Make the candidate learn first. If this does not matter, add --allow {ALLOW_DIVERGENCE}."
        elif kind in (VerdictKind.FASTER, VerdictKind.EQUIVALENT):
            kind = VerdictKind.INCONCLUSIVE
            headline = (
                f"Inconclusive whether {candidate} learns as reliably as {baseline}: "
                f"{_of(collapsed, 'run')} diverged or collapsed ({share}). {times}"
            )
            next_step = "Run a new study with more blocks to see whether it collapses more often."
    return Verdict(kind, headline, tuple(details), next_step)


def _of(counts: CollapseCounts, unit: str) -> str:
    return f"{counts.candidate} of {counts.of_candidate} {unit}{'' if counts.of_candidate == 1 else 's'}"


def _measured(time: MetricResult) -> str:
    """Return the change of a time and the speed-up, with their intervals if known."""
    ratio = time.estimate
    change = f"{METRICS[time.metric].title} {format_change(ratio.value)}"
    if ratio.low is None or ratio.high is None:
        return f"{change} without an interval, because {ratio.reason}"
    ends = f"{format_change(ratio.low)} to {format_change(ratio.high)}"
    change += f" ({100 * ratio.confidence:.3g} % interval {ends})"
    speed_up = ratio.map(lambda value: 1 / value)
    ends = f"{format_factor(speed_up.low)} to {format_factor(speed_up.high)}"
    return f"{change}, a speed-up of {format_factor(speed_up.value)} ({ends})"


def _headline(kind: VerdictKind, baseline: str, candidate: str, time: MetricResult, equivalence: float) -> str:
    measured = _measured(time)
    if time.estimate.low is None or time.estimate.high is None:
        return f"Inconclusive: {candidate} against {baseline}: {measured}."
    if kind is VerdictKind.FASTER:
        return f"{candidate} is faster than {baseline}: {measured}."
    if kind is VerdictKind.SLOWER:
        return f"{candidate} is slower than {baseline}: {measured}."
    if kind is VerdictKind.EQUIVALENT:
        return f"{candidate} is as fast as {baseline}: {measured}, all within ±{100 * equivalence:.3g} %."
    return f"Inconclusive whether {candidate} is faster than {baseline}: {measured}."


def _accuracy_details(
    accuracy: NonInferiority | None, change: float | None, collapsed: CollapseCounts | None
) -> list[str]:
    details = []
    if accuracy is not None:
        points = f"{100 * accuracy.margin:.3g}"
        points += f" point{'' if points == '1' else 's'}"
        margin = f"margin {points}"
        bound = f"{100 * accuracy.confidence:.3g} % bound, {margin}"
        if accuracy.kept is Kept.LOST and collapsed is not None and collapsed.worse:
            details.append(_lost_by_collapse("Accuracy", accuracy, collapsed))
        elif accuracy.lower_bound is None or accuracy.upper_bound is None:
            seen = f"{format_points(change)}; " if change is not None else ""
            details.append(f"Accuracy undecided: {seen}{accuracy.reason}.")
        elif accuracy.lower_bound == accuracy.upper_bound:
            details.append(f"Accuracy {accuracy.kept.value}: {format_points(change)} in every block (margin {points}).")
        elif accuracy.kept is Kept.KEPT:
            worse = collapsed is not None and collapsed.worse
            kept = "Accuracy of the runs that learned is kept" if worse else "Accuracy kept"
            details.append(
                f"{kept}: {format_points(change)}, at worst {format_points(accuracy.lower_bound)} ({bound})."
            )
        elif accuracy.kept is Kept.LOST:
            details.append(
                f"Accuracy lost: {format_points(change)}, at best {format_points(accuracy.upper_bound)} ({bound})."
            )
        else:
            bounds = f"{format_points(accuracy.lower_bound)} and {format_points(accuracy.upper_bound)}"
            level = f"{100 * (2 * accuracy.confidence - 1):.3g} % interval"  # between two one-sided bounds
            details.append(f"Accuracy undecided: {format_points(change)}, between {bounds} ({level}, {margin}).")
    if collapsed is not None and (collapsed.baseline or collapsed.candidate):
        details.append(f"Collapsed runs: {collapsed}. The accuracy does not include them.")
    return details


def _lost_by_collapse(title: str, kept: NonInferiority, collapsed: CollapseCounts) -> str:
    why = f"{collapsed.candidate} of {collapsed.of_candidate} runs diverged or collapsed"
    if kept.upper_bound is None:
        return f"{title} lost: {why}."
    best = "at best " + (format_points(kept.upper_bound) if title == "Accuracy" else _better(kept.upper_bound))
    bound = f"{100 * kept.confidence:.3g} % bound"
    return f"{title} lost: {why}. If each of them is counted at the collapse limit, {best} ({bound})."


def _quality_details(
    quality: Quality, kept: NonInferiority | None, change: float | None, collapsed: CollapseCounts | None
) -> list[str]:
    name, details = quality.name, []
    if kept is None:
        details.append(f"{name} undecided: no run of the baseline has a value other than zero.")
    elif kept.kept is Kept.LOST and collapsed is not None and collapsed.worse:
        details.append(_lost_by_collapse(name, kept, collapsed))
    elif kept.lower_bound is None or kept.upper_bound is None:
        seen = f"{_better(change)}; " if change is not None else ""
        details.append(f"{name} undecided: {seen}{kept.reason}.")
    else:
        margin = f"margin {100 * kept.margin:.3g} %"
        bound = f"{100 * kept.confidence:.3g} % bound, {margin}"
        if kept.lower_bound == kept.upper_bound:
            details.append(f"{name} {kept.kept.value}: {_better(change)} in every block ({margin}).")
        elif kept.kept is Kept.KEPT:
            details.append(f"{name} kept: {_better(change)}, at worst {_better(kept.lower_bound)} ({bound}).")
        elif kept.kept is Kept.LOST:
            details.append(f"{name} lost: {_better(change)}, at best {_better(kept.upper_bound)} ({bound}).")
        else:
            level = f"{100 * (2 * kept.confidence - 1):.3g} % interval, {margin}"
            bounds = f"{_better(kept.lower_bound)} and {_better(kept.upper_bound)}"
            details.append(f"{name} undecided: {_better(change)}, between {bounds} ({level}).")
    if collapsed is not None and (collapsed.baseline or collapsed.candidate):
        details.append(f"Diverged or collapsed runs: {collapsed}. The {name} does not include them.")
    return details


def _better(share: float | None) -> str:
    """Format a change of a quality, given as a share of the baseline's mean, positive if better."""
    if share is None:
        return NOT_AVAILABLE
    return f"{two_digits(100 * abs(share))} % {'worse' if share < 0 else 'better'}" if share else "the same"


def _certainty_details(time: MetricResult, blocked: bool) -> list[str]:
    details = []
    unit = "blocks" if blocked else "runs per arm"
    if time.exact.p is not None and time.exact.n > 1:
        floor = ""
        if time.exact.smallest is not None and time.exact.smallest > 0.05:
            floor = f" (the smallest possible with {time.exact.n} {unit} is {time.exact.smallest:.3g})"
        details.append(f"{time.exact.n} {unit}, {time.exact.method}: p = {time.exact.p:.3g}{floor}.")
    if time.detectable is not None:
        size = detectable_text(time.detectable, percent="a difference of ", factor="a factor of ")
        details.append(f"With this spread, these runs detect {size} with 80 % power.")
    return details


def _fast_steps_details(mean: Estimate, fast: Estimate | None) -> list[str]:
    """Report the 25th percentile if its interval is less than half as wide as that of the mean."""
    ends = (mean.low, mean.high, fast.low, fast.high) if fast is not None else ()
    if fast is None or any(end is None or end <= 0 for end in ends):
        return []
    low, high, fast_low, fast_high = (math.log(end or 1.0) for end in ends)
    if 2 * (fast_high - fast_low) >= high - low:
        return []
    interval = f"{100 * fast.confidence:.3g} % interval {format_change(fast.low)} to {format_change(fast.high)}"
    change = f"The 25th percentile of the step time changed by {format_change(fast.value)} ({interval})."
    return [f"{change} Other load affects it less than the mean, but it does not show slow steps."]


def _next(kind: VerdictKind, time: MetricResult, accuracy: NonInferiority | None, blocked: bool) -> str | None:
    if not blocked:
        return "Run both arms in the blocks of one study, so that drift of the machine affects them alike."
    if time.estimate.n < 2:
        return f"Run a study with {EXACT_BLOCKS} blocks."
    if kind is VerdictKind.INCONCLUSIVE and time.estimate.value is not None and time.detectable is not None:
        needed = _blocks_for(time)
        if needed is None:
            return "The difference is too small against the spread for a study of reasonable size to detect."
        return (
            f"If the difference is as large as it looks{_roughly(time.estimate.n)}, a new study with {needed} blocks "
            "detects it with 80 % power. Start a new study instead of adding blocks to this one: adding blocks until "
            "a result appears finds differences that do not exist."
        )
    if time.estimate.n < EXACT_BLOCKS:
        return f"With {EXACT_BLOCKS} or more blocks the exact test can confirm it without assuming a distribution."
    if accuracy is not None and accuracy.kept is Kept.UNDECIDED:
        return (
            "To decide whether accuracy is kept, run a new study with more blocks, or with a wider margin that you "
            "declare before it starts."
        )
    return None


def _blocks_for(time: MetricResult) -> int | None:
    effect = minimal_detectable_effect(time.estimate.n, confidence=time.estimate.confidence)
    if effect is None or time.detectable is None or time.estimate.value is None:
        return None
    sd = math.log1p(time.detectable) / effect
    needed = blocks_needed(abs(math.log(time.estimate.value)) / sd, confidence=time.estimate.confidence)
    return max(EXACT_BLOCKS, needed) if needed is not None else None


def _roughly(blocks: int) -> str:
    return f" (the spread is uncertain with {blocks} blocks)" if blocks < EXACT_BLOCKS else ""


def detectable_text(detectable: float, *, percent: str = "", factor: str = "") -> str:
    """Format the smallest detectable change of a ratio.

    Args:
        detectable: The ratio minus 1.
        percent: Prefix of a percentage.
        factor: Prefix of a factor, which replaces the percentage from tenfold on; ``×`` without it.

    Example:
        >>> detectable_text(0.126), detectable_text(33.2), detectable_text(1e20, factor="a factor of ")
        ('13 %', '×34.2', 'a factor of over 10⁶')
    """
    if 1 + detectable < TENFOLD:
        return f"{percent}{two_digits(100 * detectable)} %"
    return factor + format_factor(1 + detectable) if factor else format_factor(1 + detectable, "×")
