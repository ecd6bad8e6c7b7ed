"""Build a `Comparison` from run records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from lightning_perf import __version__
from lightning_perf.compare.errors import CompareError, InvalidRunsError
from lightning_perf.compare.records.fairness import Fairness, check_fairness, hardware_name, host_name
from lightning_perf.compare.records.metrics import (
    METRICS,
    QUALITY_METRICS,
    Quality,
    find_quality,
    reach_time,
    run_values,
)
from lightning_perf.compare.records.record import RunRecord
from lightning_perf.compare.verdicts.busy import busy_lines
from lightning_perf.compare.verdicts.comparison import Arm, Candidate, Comparison, Run
from lightning_perf.compare.verdicts.gates import (
    ALLOW_DIVERGENCE,
    ALLOW_FAILURES,
    ALLOW_SESSIONS,
    GateOutcome,
    GateResult,
    Settings,
    judge,
)
from lightning_perf.compare.verdicts.learned import Learned, has_collapsed, judge_learning, quality_limit
from lightning_perf.compare.verdicts.notes import fairness_notes, run_notes
from lightning_perf.compare.verdicts.pair import Pair, compare_metric, logarithms
from lightning_perf.compare.verdicts.prediction import check_prediction
from lightning_perf.compare.verdicts.refusal import UnfairError
from lightning_perf.compare.verdicts.sessions import session_notes
from lightning_perf.compare.verdicts.unfinished import count_unfinished
from lightning_perf.compare.verdicts.verdict import describe_verdict
from lightning_perf.run_files.run_record import FactValue, Outcome
from lightning_perf.statistics import censored
from lightning_perf.statistics.collapse import CollapseCounts, clopper_pearson
from lightning_perf.statistics.describe import describe
from lightning_perf.statistics.drift import measure_drift
from lightning_perf.statistics.spread import compare_spread
from lightning_perf.statistics.values import Estimate, finite

__all__ = ["compare_arms", "find_left_out"]

_Block = tuple[str, int]
"""The ID of a study and the number of one of its blocks."""


def compare_arms(
    arms: Mapping[str, Sequence[RunRecord]],
    settings: Settings | None = None,
    *,
    failed_blocks: Mapping[str, Collection[int]] | None = None,
) -> Comparison:
    """Compare each arm with the first one, the baseline.

    Args:
        arms: The runs of each arm, by its name.
        settings: Choices made before the runs were seen; the defaults without them.
        failed_blocks: Blocks of a study, by arm, in which a run failed without leaving a record.

    Returns:
        The comparison.

    Raises:
        CompareError: There are fewer than two arms, a run was given twice, or no run logged the named metric.
        InvalidRunsError: An arm has no finished and valid run.
        UnfairError: The fingerprints differ in facts that are neither the treatment nor allowed.
    """
    settings = settings or Settings()
    if len(arms) < 2:
        raise CompareError(
            f"A comparison needs at least two arms, not {len(arms)}. Give a folder of runs for each arm, or the folder "
            "of a study."
        )
    names = list(arms)
    _check_each_once([run.path for runs in arms.values() for run in runs])
    left_out = find_left_out(arms)
    used = {name: [run for run in runs if run.path not in left_out[name]] for name, runs in arms.items()}
    for name in names:
        if not used[name]:
            reasons = ", ".join(f"{count} {reason}" for reason, count in Counter(left_out[name].values()).items())
            raise InvalidRunsError(
                f"{name}: no valid run to compare ({reasons or 'it has no runs'}). Train this arm again."
            )
    everything = [run for runs in used.values() for run in runs]
    blocked = _is_blocked(used)
    if blocked:
        _check_blocks_in_common(used)
    treatment = tuple(
        dict.fromkeys([*settings.treatment, *(t for run in everything if run.place for t in run.place.treatment)])
    )
    fairness = {
        name: check_fairness(used[names[0]], used[name], treatment=treatment, allow=settings.allow, blocked=blocked)
        for name in names[1:]
    }
    if any(check.unfair for check in fairness.values()):
        raise UnfairError(names[0], {name: check.unfair for name, check in fairness.items() if check.unfair})

    quality = find_quality(everything, settings.accuracy, settings.quality)
    if quality is not None and not quality.is_accuracy and (settings.goal, settings.collapse_below) != (None, None):
        raise CompareError(
            f"--goal and --collapse-below need an accuracy, but {quality.name} is a {quality.metric}. "
            "Leave them out, or name the accuracy with --accuracy METRIC."
        )
    accuracy = quality if quality is not None and quality.is_accuracy else None
    values = {run.path: run_values(run, quality, settings.goal) for runs in arms.values() for run in runs}
    base_runs = used[names[0]]
    of_quality = {run.path: values[run.path][quality.metric] if quality is not None else None for run in everything}
    limit = settings.collapse_below
    if limit is None and quality is not None:
        limit = quality_limit(
            quality, [of_quality[run.path] for run in base_runs], [of_quality[run.path] for run in everything]
        )
    collapsed = {run.path: has_collapsed(run, of_quality[run.path], quality, limit, base_runs) for run in everything}
    points = _points(arms, left_out, values, collapsed)
    of_arm = {name: [point for point in points if point.arm == name and point.left_out is None] for name in names}
    confidence = 1 - (1 - settings.confidence) / (len(names) - 1)
    independent = ALLOW_SESSIONS in settings.allow
    pairs = {name: Pair(names[0], name, of_arm, used, blocked, confidence, independent) for name in names[1:]}
    learned = {
        name: judge_learning(pair, quality, limit, settings.margin) if quality is not None else None
        for name, pair in pairs.items()
    }
    unfinished = count_unfinished(arms, blocked=blocked, failed_blocks=failed_blocks)
    candidates = [
        _candidate(pair, settings, quality, learned[name], unfinished[name], fairness[name], arms)
        for name, pair in pairs.items()
    ]
    in_order = [point for point in points if point.left_out is None]
    return Comparison(
        baseline=names[0],
        blocked=blocked,
        confidence=settings.confidence,
        treatment=treatment,
        allowed=settings.allow,
        accuracy_metric=accuracy.name if accuracy is not None else None,
        accuracy_goal=settings.goal,
        collapse_limit=limit,
        arms=tuple(_arm(name, of_arm[name], used[name], left_out[name], quality, settings) for name in names),
        candidates=tuple(candidates),
        runs=tuple(points),
        drift=measure_drift(
            [point.values["step_time"] for point in in_order],
            [point.arm for point in in_order],
            [point.block or 0 for point in in_order] if blocked else None,
        ),
        notes=(
            *fairness_notes(fairness, blocked, treatment, names[0]),
            *session_notes(used, blocked),
            *run_notes(used, quality),
        ),
        gates=tuple(
            result
            for candidate in candidates
            for result in _gates(candidate, pairs[candidate.arm], settings, learned[candidate.arm])
        ),
        equivalence=settings.equivalence,
        hardware=tuple(dict.fromkeys(device for run in everything if (device := hardware_name(run.facts)) is not None)),
        quality_metric=quality.name if quality is not None else None,
        quality_is=quality.metric if quality is not None else None,
        machines=tuple(dict.fromkeys(host for run in everything if (host := host_name(run)) is not None)),
        tool_version=__version__,
    )


def find_left_out(arms: Mapping[str, Sequence[RunRecord]]) -> dict[str, dict[Path, str]]:
    """Find the runs that do not count, and why.

    Args:
        arms: The runs of each arm.

    Returns:
        For each arm the reasons, by the path of the run's record: the run is a warm-up, did not finish, belongs to a
        repeated block, or is invalid.
    """
    last = _last_attempts([run for runs in arms.values() for run in runs])
    reasons = {name: {run.path: _reason(run, last) for run in runs} for name, runs in arms.items()}
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
    if place is not None and place.block == 0:
        return "warm-up"
    if run.outcome is not Outcome.FINISHED:
        return str(run.outcome.value)
    if place is not None and place.attempt < last_attempts[place.study, place.block]:
        return "of a repeated block"
    return "invalid: " + "; ".join(run.problems) if run.problems else None


def _candidate(
    pair: Pair,
    settings: Settings,
    quality: Quality | None,
    learned: Learned | None,
    unfinished: CollapseCounts,
    fairness: Fairness,
    arms: Mapping[str, Sequence[RunRecord]],
) -> Candidate:
    results = tuple(result for name in METRICS if (result := compare_metric(pair, name)) is not None)
    by_name = {result.metric: result for result in results}
    kept = learned.kept if learned is not None else None
    collapsed = learned.collapsed if learned is not None else None
    is_accuracy = quality is not None and quality.is_accuracy
    first = None
    if pair.blocked and settings.goal is not None:
        base, candidate = ([reach_time(r, quality, settings.goal) for r in records] for records in pair.records)
        first = censored.first_to_reach(base, candidate)
    time_logs = [logarithms(values) for values in pair.values("step_time")]
    fast_steps = pair.fast_steps()
    verdict = describe_verdict(
        baseline=pair.baseline,
        candidate=pair.candidate,
        results=results,
        accuracy=kept,
        accuracy_change=learned.change if learned is not None else None,
        collapsed=collapsed,
        blocked=pair.blocked,
        equivalence=settings.equivalence,
        quality=quality,
        diverged=learned is not None and learned.diverged,
        unfinished=unfinished,
        allow=settings.allow,
        busy=busy_lines({name: arms[name] for name in (pair.baseline, pair.candidate)}),
        fast_steps=fast_steps,
    )
    return Candidate(
        arm=pair.candidate,
        verdict=verdict,
        metrics=results,
        accuracy=kept if is_accuracy else None,
        collapse_p=collapsed.p if collapsed is not None else None,
        first_to_accuracy=first,
        time_spread=compare_spread(*time_logs, paired=pair.blocked) if len(finite(time_logs[0])) else None,
        accuracy_spread=compare_spread(*pair.values("accuracy"), paired=pair.blocked) if is_accuracy else None,
        differences=fairness.differences,
        prediction=check_prediction(
            arms[pair.baseline], pair.records[1], by_name["step_time"].estimate if "step_time" in by_name else None
        ),
        quality=kept if not is_accuracy else None,
        unfinished=unfinished,
        step_time_p25=fast_steps,
    )


def _gates(candidate: Candidate, pair: Pair, settings: Settings, learned: Learned | None) -> Iterable[GateResult]:
    results = {result.metric: result for result in candidate.metrics}
    at_limit = None
    if learned is not None and learned.limit is not None:
        at_limit = pair.estimate(learned.quality.metric, of_collapsed=learned.limit)
    for gate in settings.gates:
        result = results.get(gate.metric)
        yield judge(
            gate,
            candidate.arm,
            result.estimate if result else None,
            deterministic=result.deterministic if result else False,
            collapsed=learned.collapsed if learned is not None and ALLOW_DIVERGENCE not in settings.allow else None,
            with_collapsed=at_limit,
            diverged=learned is not None and learned.diverged,
        )
    unfinished = candidate.unfinished
    if settings.gates and unfinished is not None and unfinished.worse and ALLOW_FAILURES not in settings.allow:
        reason = f"{'blocks with a run' if pair.blocked else 'runs'} that did not finish: {unfinished}"
        yield GateResult(ALLOW_FAILURES, candidate.arm, GateOutcome.FAILED, None, None, None, reason)


def _text(value: FactValue) -> str | None:
    return str(value) if value is not None else None


def _check_each_once(paths: Iterable[Path]) -> None:
    for path, count in Counter(path.resolve() for path in paths).items():
        if count > 1:
            raise CompareError(f"{path}: this run is given {count} times. Give each arm its own folders.")


def _check_blocks_in_common(used: Mapping[str, Sequence[RunRecord]]) -> None:
    baseline, *others = ({run.place.block for run in runs if run.place} for runs in used.values())
    for name, blocks in zip(list(used)[1:], others, strict=True):
        if not blocks & baseline:
            raise InvalidRunsError(
                f"{name}: no block has valid runs of both {name} and {next(iter(used))}. Run the study again to resume."
            )


def _is_blocked(arms: Mapping[str, Sequence[RunRecord]]) -> bool:
    """Return whether all runs are from one study, with at most one run per arm and block."""
    places = [run.place for runs in arms.values() for run in runs]
    if any(place is None for place in places) or len({place.study for place in places if place}) != 1:
        return False
    slots = [(name, run.place.block) for name, runs in arms.items() for run in runs if run.place]
    return len(set(slots)) == len(slots)


def _points(
    arms: Mapping[str, Sequence[RunRecord]],
    left_out: Mapping[str, Mapping[Path, str]],
    values: Mapping[Path, Mapping[str, float | None]],
    collapsed: Mapping[Path, bool],
) -> list[Run]:
    by_start = sorted(
        ((run, name) for name, runs in arms.items() for run in runs), key=lambda item: item[0].started_unix_s
    )
    return [
        Run(
            run_id=run.run_id,
            arm=name,
            block=run.place.block if run.place else None,
            order=order,
            left_out=left_out[name].get(run.path),
            collapsed=collapsed.get(run.path, False),
            values=values[run.path],
            started_unix_s=run.started_unix_s,
            revision=_text(run.facts.get("code.revision")),
        )
        for order, (run, name) in enumerate(by_start)
    ]


def _arm(
    name: str,
    points: Sequence[Run],
    records: Sequence[RunRecord],
    left_out: Mapping[Path, str],
    quality: Quality | None,
    settings: Settings,
) -> Arm:
    reach = [time for run in records if (time := reach_time(run, quality, settings.goal)) is not None]
    collapsed = sum(point.collapsed for point in points)
    unknown = Estimate(None, None, None, settings.confidence, 0, "Clopper–Pearson", "the runs have no accuracy")
    return Arm(
        name=name,
        used=len(points),
        left_out=dict(Counter(left_out.values())),
        collapsed=clopper_pearson(collapsed, len(points)) if quality is not None else unknown,
        metrics={
            metric: describe([None if metric in QUALITY_METRICS and p.collapsed else p.values[metric] for p in points])
            for metric in METRICS
        },
        reached_goal=sum(time.reached for time in reach) if settings.goal is not None else None,
        median_time_to_accuracy_s=censored.kaplan_meier_median(reach) if reach else None,
    )
