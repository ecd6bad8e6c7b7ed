"""The facts of a comparison: its runs, the settings declared for them, and everything that follows from both."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.compare.records.fairness import Fairness, check_fairness
from lightning_perf.compare.records.metrics import Quality, find_quality, is_broken, run_values
from lightning_perf.compare.records.record import RunRecord
from lightning_perf.compare.verdicts.comparison import Run
from lightning_perf.compare.verdicts.gates import Settings
from lightning_perf.compare.verdicts.pair import Pair, pair_runs
from lightning_perf.run_files.run_record import Outcome
from lightning_perf.statistics.collapse import LEAST_DROP, CollapseCounts, baseline_limit, collapse_limit
from lightning_perf.statistics.location import Difference, Kept, NonInferiority, non_inferiority
from lightning_perf.statistics.values import Numbers, finite

WARM_UP = 0
"""The block of the warm-up."""

_Block = tuple[str, int]
"""The ID of a study and the number of one of its blocks."""

_Unit = int | str
"""The number of a block, or the file of a run outside a study."""


class Facts(Struct, frozen=True, dict=True):
    """The runs of each arm, the baseline first. Each property is computed once, when it is first read.

    `CHECKS` holds the conditions under which all properties have a value.
    """

    arms: Mapping[str, Sequence[RunRecord]]
    settings: Settings
    failed_blocks: Mapping[str, Collection[int]]

    @property
    def baseline(self) -> str:
        """The name of the first arm."""
        return next(iter(self.arms))

    @property
    def candidates(self) -> tuple[str, ...]:
        """The names of the other arms."""
        return tuple(self.arms)[1:]

    @cached_property
    def left_out(self) -> dict[str, dict[Path, str]]:
        """For each arm the runs that do not count, and why; see `find_left_out`."""
        return find_left_out(self.arms)

    @cached_property
    def used(self) -> dict[str, list[RunRecord]]:
        """The runs of each arm that count."""
        return {name: [run for run in runs if run.path not in self.left_out[name]] for name, runs in self.arms.items()}

    @cached_property
    def runs(self) -> list[RunRecord]:
        """The runs of all arms that count."""
        return [run for runs in self.used.values() for run in runs]

    @cached_property
    def blocked(self) -> bool:
        """Whether all runs are from one study, with at most one run per arm and block, so that they form pairs."""
        places = [(name, run.place) for name, runs in self.used.items() for run in runs]
        studies = {place.study if place is not None else None for _, place in places}
        slots = {(name, place.block) for name, place in places if place is not None}
        return None not in studies and len(studies) == 1 and len(slots) == len(places)

    @cached_property
    def treatment(self) -> tuple[str, ...]:
        """The facts being tested: those of the settings and those that a study declared."""
        of_study = [name for run in self.runs if run.place for name in run.place.treatment]
        return tuple(dict.fromkeys([*self.settings.treatment, *of_study]))

    @cached_property
    def fairness(self) -> dict[str, Fairness]:
        """The differences between the fingerprints of each candidate and the baseline."""
        facts = {name: [run.facts for run in runs] for name, runs in self.used.items()}
        blocks = {name: [run.place.block for run in runs if run.place] for name, runs in self.used.items()}
        return {
            name: check_fairness(
                facts[self.baseline],
                facts[name],
                treatment=self.treatment,
                allow=self.settings.allow,
                blocks=(blocks[self.baseline], blocks[name]) if self.blocked else None,
            )
            for name in self.candidates
        }

    @cached_property
    def quality(self) -> Quality | None:
        """The metric that shows how well the runs learned. Reading it raises a `CompareError` for a wrong name."""
        return find_quality(self.runs, self.settings.accuracy, self.settings.quality)

    @cached_property
    def values(self) -> dict[Path, dict[str, float | None]]:
        """The value of each metric, for every run."""
        return {
            run.path: run_values(run, self.quality, self.settings.goal) for runs in self.arms.values() for run in runs
        }

    @cached_property
    def collapse_limit(self) -> float | None:
        """The value of the quality beyond which a run has collapsed."""
        if self.settings.collapse_below is not None or self.quality is None:
            return self.settings.collapse_below
        of_baseline = [self._quality_of(run) for run in self.used[self.baseline]]
        return quality_limit(self.quality, of_baseline, [self._quality_of(run) for run in self.runs])

    @cached_property
    def points(self) -> tuple[Run, ...]:
        """All runs in the order of their start."""
        in_arms = [(run, name) for name, runs in self.arms.items() for run in runs]
        by_start = sorted(in_arms, key=lambda item: item[0].started_unix_s)
        return tuple(self._point(order, name, run) for order, (run, name) in enumerate(by_start))

    @cached_property
    def points_of(self) -> dict[str, list[Run]]:
        """The points of each arm that count."""
        return {
            name: [point for point in self.points if point.arm == name and not point.left_out] for name in self.arms
        }

    @cached_property
    def pairs(self) -> dict[str, Pair]:
        """The runs of each candidate next to those of the baseline."""
        base, candidates = self.baseline, self.candidates
        return {
            name: pair_runs(
                (self.points_of[base], self.points_of[name]),
                (self.used[base], self.used[name]),
                blocked=self.blocked,
                confidence=1 - (1 - self.settings.confidence) / len(candidates),
                allow=self.settings.allow,
            )
            for name in candidates
        }

    @cached_property
    def learned(self) -> dict[str, Learned]:
        """Whether each candidate still learns; empty without a quality."""
        quality = self.quality
        if quality is None:
            return {}
        return {
            name: judge_learning(pair, quality, self.collapse_limit, self.settings.margin)
            for name, pair in self.pairs.items()
        }

    @cached_property
    def unfinished(self) -> dict[str, CollapseCounts]:
        """The runs of each candidate that crashed or were killed; see `count_unfinished`."""
        return count_unfinished(self.arms, blocked=self.blocked, failed_blocks=self.failed_blocks)

    def _quality_of(self, run: RunRecord) -> float | None:
        return self.values[run.path][self.quality.metric] if self.quality is not None else None

    def _point(self, order: int, arm: str, run: RunRecord) -> Run:
        left_out = self.left_out[arm].get(run.path)
        value, base = self._quality_of(run), self.used[self.baseline]
        revision = run.facts.get("code.revision")
        return Run(
            run_id=run.run_id,
            arm=arm,
            block=run.place.block if run.place else None,
            order=order,
            left_out=left_out,
            collapsed=left_out is None and has_collapsed(run, value, self.quality, self.collapse_limit, base),
            values=self.values[run.path],
            started_unix_s=run.started_unix_s,
            revision=str(revision) if revision is not None else None,
        )


def find_left_out(arms: Mapping[str, Sequence[RunRecord]]) -> dict[str, dict[Path, str]]:
    """Return for each arm the runs that do not count, by their files, with the reason.

    A run does not count if it is a warm-up, did not finish, belongs to a repeated block, is invalid, or is a copy.
    """
    last = _last_attempts([run for runs in arms.values() for run in runs])
    reasons = {name: {run.path: _reason(run, last) for run in runs} for name, runs in arms.items()}
    for name, runs in arms.items():
        first = {run.identity: run.path for run in reversed(runs)}
        reasons[name] |= {run.path: "a copy of another run" for run in runs if first[run.identity] != run.path}
    return {name: {path: why for path, why in of_arm.items() if why is not None} for name, of_arm in reasons.items()}


def _last_attempts(runs: Sequence[RunRecord]) -> dict[_Block, int]:
    """Return the last attempt of each block. Runs of different attempts had different conditions."""
    last: dict[_Block, int] = {}
    for run in runs:
        if run.place is not None:
            block = (run.place.study, run.place.block)
            last[block] = max(run.place.attempt, last.get(block, 0))
    return last


def _reason(run: RunRecord, last_attempts: Mapping[_Block, int]) -> str | None:
    place = run.place
    if place is not None and place.block == WARM_UP:
        return "warm-up"
    if run.outcome is not Outcome.FINISHED:
        return str(run.outcome.value)
    if place is not None and place.attempt < last_attempts[place.study, place.block]:
        return "of a repeated block"
    return "invalid: " + "; ".join(run.problems) if run.problems else None


def without_warm_up(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs that are not warm-ups of a study."""
    return [run for run in runs if run.place is None or run.place.block != WARM_UP]


def count_unfinished(
    arms: Mapping[str, Sequence[RunRecord]], *, blocked: bool, failed_blocks: Mapping[str, Collection[int]]
) -> dict[str, CollapseCounts]:
    """Count for each candidate the blocks with a run that did not finish; outside a study, count the runs.

    A run that failed and was repeated counts, so that a candidate that often crashes is not called faster. A run that
    the user stopped does not count. A run that was cut off and repeated in the same attempt does not count either.
    `failed_blocks` has more blocks: a run in them failed without leaving a record.
    """
    by_start = sorted((run for runs in arms.values() for run in runs), key=lambda run: run.started_unix_s)
    running = None  # the last to start, which may still be running
    if len(by_start) > 1 and by_start[-1].started_unix_s > by_start[-2].started_unix_s:
        running = by_start[-1]
    counts = {}
    for name, runs in arms.items():
        counted = without_warm_up(runs)
        failed = {_unit(run, blocked) for run in counted if run is not running and _did_not_finish(run, counted)}
        begun = {_unit(run, blocked) for run in counted if run.outcome is not Outcome.STOPPED}
        if blocked:
            failed |= set(failed_blocks.get(name, ()))
        counts[name] = (len(failed), len(begun | failed))
    baseline, *others = counts.values()
    return {name: CollapseCounts(*baseline, *of_arm) for name, of_arm in zip(list(counts)[1:], others, strict=True)}


def _unit(run: RunRecord, blocked: bool) -> _Unit:
    return run.place.block if blocked and run.place is not None else str(run.path)


def _did_not_finish(run: RunRecord, runs: Sequence[RunRecord]) -> bool:
    if run.outcome is not Outcome.INTERRUPTED:
        return run.outcome is Outcome.FAILED
    place, again = run.place, [other.place for other in runs if other.started_unix_s > run.started_unix_s]
    return place is None or (place.block, place.attempt) not in [(p.block, p.attempt) for p in again if p is not None]


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
