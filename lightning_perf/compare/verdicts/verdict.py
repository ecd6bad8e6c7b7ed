"""Describe the results of a candidate in sentences: the verdict, its certainty, and the next step."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.compare.records.metrics import METRICS
from lightning_perf.compare.verdicts.comparison import MetricResult, Verdict, VerdictKind
from lightning_perf.compare.verdicts.facts import Learned
from lightning_perf.compare.verdicts.gates import ALLOW_DIVERGENCE, ALLOW_FAILURES
from lightning_perf.compare.verdicts.pair import NOT_COMPARABLE
from lightning_perf.statistics.collapse import CollapseCounts
from lightning_perf.statistics.location import Kept, blocks_needed, minimal_detectable_effect
from lightning_perf.statistics.values import Estimate
from lightning_perf.units import (
    NOT_AVAILABLE,
    format_change,
    format_detectable,
    format_factor,
    format_points,
    two_digits,
)

TIMES = ("step_time", "throughput", "train_time")
"""The verdict is decided by the first of these metrics that the runs have and that compares the same work."""

TITLES = {name: metric.title for name, metric in METRICS.items()} | {"throughput": "time per sample"}
"""The titles of the times that a verdict describes."""

EXACT_BLOCKS = 6
"""Smallest number of blocks with which an exact paired test can reach p < 0.05."""


def classify(ratio: Estimate, equivalence: float) -> VerdictKind:
    """Return the verdict for a ratio of times, candidate / baseline, by its interval.

    Times within the share `equivalence` of each other are equivalent, even if the interval excludes 1.
    """
    if ratio.low is None or ratio.high is None:
        return VerdictKind.INCONCLUSIVE
    if 1 / (1 + equivalence) <= ratio.low and ratio.high <= 1 + equivalence:
        return VerdictKind.EQUIVALENT
    if ratio.high < 1:
        return VerdictKind.FASTER
    return VerdictKind.SLOWER if ratio.low > 1 else VerdictKind.INCONCLUSIVE


def as_time(result: MetricResult) -> MetricResult:
    """Return a throughput as the time per sample."""
    mean = result.mean.map(_inverse) if result.mean is not None else None
    return replace(result, estimate=result.estimate.map(_inverse), mean=mean)


def _inverse(ratio: float) -> float:
    return 1 / ratio


class Evidence(Struct, frozen=True):
    """The results of a candidate that its verdict describes.

    Attributes:
        equivalence: Times within this share of each other are equivalent.
        unfinished: Counts for both arms of blocks with a run that did not finish, or of such runs outside a study.
        learned: Whether it still learns; None if the runs share no quality.
        busy: Sentences on other load on the machine during the runs.
        fast_steps: Ratio of the 25th percentiles of step times, or None.
    """

    baseline: str
    candidate: str
    results: Sequence[MetricResult]
    blocked: bool
    equivalence: float
    unfinished: CollapseCounts
    learned: Learned | None = None
    allow: Collection[str] = ()
    busy: Sequence[str] = ()
    fast_steps: Estimate | None = None

    @property
    def time(self) -> MetricResult | None:
        """The result that decides the verdict; None if the runs have no times."""
        by_name = {result.metric: result for result in self.results if result.estimate.method != NOT_COMPARABLE}
        found = next((by_name[name] for name in TIMES if name in by_name), None)
        if found is None or found.estimate.value is None:
            return None
        return as_time(found) if METRICS[found.metric].higher_is_better else found

    @property
    def kind(self) -> VerdictKind:
        """The verdict by the times alone."""
        return classify(self.time.estimate, self.equivalence) if self.time is not None else VerdictKind.INCONCLUSIVE

    @property
    def times_alone(self) -> str:
        """The times in a sentence without the word "faster", for readers who stop at the headline."""
        return f"Times alone: {_measured(self.time)}." if self.time else f"No verdict on times: {self.no_times}."

    @property
    def no_times(self) -> str:
        """Why there is no verdict on times."""
        of_times = (result.estimate.reason for name in TIMES for result in self.results if result.metric == name)
        return str(next(of_times, "the runs have no times"))

    @property
    def more_collapsed(self) -> CollapseCounts | None:
        """The collapsed runs, if more of the candidate's runs collapsed and the settings do not accept this."""
        if self.learned is None or not self.learned.collapsed.worse or ALLOW_DIVERGENCE in self.allow:
            return None
        return self.learned.collapsed


_Outcome = tuple[VerdictKind, str, str | None]
"""The kind of a verdict, its headline and the next step."""


def describe_verdict(evidence: Evidence) -> Verdict:
    """Describe a candidate's results: the headline, the details and the next step."""
    kind, headline, next_step = (
        _unfinished(evidence) or _diverged(evidence) or _learns_less_reliably(evidence) or _by_times(evidence)
    )
    details = (
        *_total_details(evidence),
        *evidence.busy,
        *_learned_details(evidence),
        *_unfinished_details(evidence),
        *_certainty_details(evidence),
        *_fast_steps_details(evidence),
    )
    return Verdict(kind, headline, details, next_step)


def _unfinished(evidence: Evidence) -> _Outcome | None:
    counts = evidence.unfinished
    if not counts.worse or ALLOW_FAILURES in evidence.allow:
        return None
    what = f"in {_of(counts, 'block')}" if evidence.blocked else _of(counts, "run")
    return (
        VerdictKind.UNFINISHED,
        f"{evidence.candidate} did not finish {what} ({_of_baseline(evidence, counts)}). {evidence.times_alone}",
        f"Find out why these runs failed. If failures do not matter, add --allow {ALLOW_FAILURES}.",
    )


def _diverged(evidence: Evidence) -> _Outcome | None:
    counts = evidence.more_collapsed
    if counts is None or evidence.learned is None or not evidence.learned.diverged:
        return None
    return (
        VerdictKind.DIVERGED,
        (
            f"{evidence.candidate} diverged or collapsed in {_of(counts, 'run')} ({_of_baseline(evidence, counts)}). "
            f"{evidence.times_alone}"
        ),
        f"Make the candidate learn first. If this does not matter, add --allow {ALLOW_DIVERGENCE}.",
    )


def _learns_less_reliably(evidence: Evidence) -> _Outcome | None:
    counts = evidence.more_collapsed
    if counts is None or evidence.kind not in (VerdictKind.FASTER, VerdictKind.EQUIVALENT):
        return None
    return (
        VerdictKind.INCONCLUSIVE,
        (
            f"Inconclusive whether {evidence.candidate} learns as reliably as {evidence.baseline}: "
            f"{_of(counts, 'run')} diverged or collapsed ({_of_baseline(evidence, counts)}). {evidence.times_alone}"
        ),
        "Run a new study with more blocks to see whether it collapses more often.",
    )


def _by_times(evidence: Evidence) -> _Outcome:
    time, kind = evidence.time, evidence.kind
    if time is None:
        return VerdictKind.INCONCLUSIVE, f"Inconclusive: {evidence.no_times}.", None
    headline = _headline(kind, evidence.baseline, evidence.candidate, time, evidence.equivalence)
    return kind, headline, _next(evidence, time)


def _total_details(evidence: Evidence) -> Iterator[str]:
    """Report the total cost, and which rare slow runs the interval allows for or cannot exclude."""
    time = evidence.time
    if time is None or time.mean is None:
        return
    name = TITLES[time.metric]
    if time.mean.low is None or time.mean.high is None:
        yield f"The mean {name} of all runs changed by {format_change(time.mean.value)}."
    else:
        ends = f"{format_change(time.mean.low)} to {format_change(time.mean.high)}"
        level = f"{100 * time.mean.confidence:.3g} %"
        yield f"The mean {name} of all runs changed by {format_change(time.mean.value)} ({level} interval {ends})."
    n = time.estimate.n
    if time.far_blocks is not None:
        slow = zip((evidence.baseline, evidence.candidate), time.far_blocks, strict=True)
        where = [f"{arm} was far slower than usual in {count} of {n} blocks" for arm, count in slow if count]
        cause = " and ".join(where) or "a few blocks differ more than the others, all in one direction"
        yield f"{cause[0].upper() + cause[1:]}, so the interval of the verdict also covers the mean."
    elif evidence.kind in (VerdictKind.FASTER, VerdictKind.EQUIVALENT) and n > 1:
        share = 100 * (1 - (1 - time.estimate.confidence) ** (1 / n))
        yield (
            f"{n} runs may miss slow runs of {evidence.candidate} if they are fewer than {share:.0f} % "
            f"({100 * time.estimate.confidence:.3g} % confidence)."
        )


def _learned_details(evidence: Evidence) -> Iterator[str]:
    learned = evidence.learned
    if learned is None:
        return
    yield _kept_text(learned)
    counts = learned.collapsed
    if counts.baseline or counts.candidate:
        is_accuracy = learned.quality.is_accuracy
        title, name = ("Collapsed", "accuracy") if is_accuracy else ("Diverged or collapsed", learned.quality.name)
        yield f"{title} runs: {counts}. The {name} does not include them."


def _kept_text(learned: Learned) -> str:
    kept, name = learned.kept, learned.quality.name
    if kept is None:
        return f"{name} undecided: no run of the baseline has a value other than zero."
    text, margin = _better, f"margin {100 * kept.margin:.3g} %"
    if learned.quality.is_accuracy:
        points = f"{100 * kept.margin:.3g}"
        name, text, margin = "Accuracy", format_points, f"margin {points} point{'' if points == '1' else 's'}"
    change, low, high = text(learned.change), text(kept.lower_bound), text(kept.upper_bound)
    bound = f"{100 * kept.confidence:.3g} % bound"
    if kept.kept is Kept.LOST and learned.collapsed.worse:
        counts = learned.collapsed
        lost = f"{name} lost: {counts.candidate} of {counts.of_candidate} runs diverged or collapsed."
        if kept.upper_bound is None:
            return lost
        return f"{lost} If each of them is counted at the collapse limit, at best {high} ({bound})."
    if kept.lower_bound is None or kept.upper_bound is None:
        seen = f"{change}; " if learned.change is not None else ""
        return f"{name} undecided: {seen}{kept.reason}."
    some = " of the runs that learned is" if learned.quality.is_accuracy and learned.collapsed.worse else ""
    if kept.lower_bound == kept.upper_bound:
        return f"{name}{some} {kept.kept.value}: {change} in every block{' of theirs' if some else ''} ({margin})."
    if kept.kept is Kept.KEPT:
        return f"{name}{some} kept: {change}, at worst {low} ({bound}, {margin})."
    if kept.kept is Kept.LOST:
        return f"{name} lost: {change}, at best {high} ({bound}, {margin})."
    level = f"{100 * (2 * kept.confidence - 1):.3g} % interval"  # between two one-sided bounds
    return f"{name} undecided: {change}, between {low} and {high} ({level}, {margin})."


def _unfinished_details(evidence: Evidence) -> Iterator[str]:
    counts = evidence.unfinished
    if counts.baseline or counts.candidate:
        yield f"{'Blocks with a run' if evidence.blocked else 'Runs'} that did not finish: {counts}."


def _certainty_details(evidence: Evidence) -> Iterator[str]:
    time = evidence.time
    if time is None:
        return
    unit = "blocks" if evidence.blocked else "runs per arm"
    if time.exact.p is not None and time.exact.n > 1:
        floor = ""
        if time.exact.smallest is not None and time.exact.smallest > 0.05:
            floor = f" (the smallest possible with {time.exact.n} {unit} is {time.exact.smallest:.3g})"
        yield f"{time.exact.n} {unit}, {time.exact.method}: p = {time.exact.p:.3g}{floor}."
    if time.detectable is not None:
        size = format_detectable(time.detectable, percent="a difference of ", factor="a factor of ")
        yield f"With this spread, these runs detect {size} with 80 % power."


def _fast_steps_details(evidence: Evidence) -> Iterator[str]:
    """Report the 25th percentile if its interval is less than half as wide as that of the mean."""
    fast, time = evidence.fast_steps, evidence.time
    if fast is None or time is None or evidence.kind is not VerdictKind.INCONCLUSIVE:
        return
    ends = [end for end in (time.estimate.low, time.estimate.high, fast.low, fast.high) if end is not None and end > 0]
    if len(ends) < 4:
        return
    low, high, fast_low, fast_high = map(math.log, ends)
    if 2 * (fast_high - fast_low) >= high - low:
        return
    interval = f"{100 * fast.confidence:.3g} % interval {format_change(fast.low)} to {format_change(fast.high)}"
    yield (
        f"The 25th percentile of the step time changed by {format_change(fast.value)} ({interval}). Other load affects "
        "it less than the mean, but it does not show slow steps."
    )


def _of_baseline(evidence: Evidence, counts: CollapseCounts) -> str:
    return f"{evidence.baseline}: {counts.baseline} of {counts.of_baseline}"


def _of(counts: CollapseCounts, unit: str) -> str:
    return f"{counts.candidate} of {counts.of_candidate} {unit}{'' if counts.of_candidate == 1 else 's'}"


def _measured(time: MetricResult) -> str:
    """Return the change of a time and the speed-up, with their intervals if known."""
    ratio = time.estimate
    change = f"{TITLES[time.metric]} {format_change(ratio.value)}"
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


def _better(share: float | None) -> str:
    """Format a change of a quality, given as a share of the baseline's mean, positive if better."""
    if share is None:
        return NOT_AVAILABLE
    return f"{two_digits(100 * abs(share))} % {'worse' if share < 0 else 'better'}" if share else "the same"


def _next(evidence: Evidence, time: MetricResult) -> str | None:
    if not evidence.blocked:
        return "Run both arms in the blocks of one study, so that drift of the machine affects them alike."
    if time.estimate.n < 2:
        return f"Run a study with {EXACT_BLOCKS} blocks."
    if evidence.kind is VerdictKind.INCONCLUSIVE and time.detectable is not None:
        needed = _blocks_for(time)
        if needed is None:
            return "The difference is too small against the spread for a study of reasonable size to detect."
        few = f" (the spread is uncertain with {time.estimate.n} blocks)" if time.estimate.n < EXACT_BLOCKS else ""
        return (
            f"If the difference is as large as it looks{few}, a new study with {needed} blocks "
            "detects it with 80 % power. Start a new study instead of adding blocks to this one: adding blocks until "
            "a result appears finds differences that do not exist."
        )
    if time.estimate.n < EXACT_BLOCKS:
        return f"With {EXACT_BLOCKS} or more blocks the exact test can confirm it without assuming a distribution."
    kept = evidence.learned.kept if evidence.learned is not None else None
    if kept is not None and kept.kept is Kept.UNDECIDED:
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
