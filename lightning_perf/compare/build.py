"""Run records in, `Comparison` out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_perf.compare.comparison import Arm, Candidate, Comparison, MetricResult, Prediction, Run
from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.fairness import Difference, Fairness, check_fairness
from lightning_perf.compare.gates import Gate, GateResult, judge
from lightning_perf.compare.metrics import METRICS, find_accuracy, reach_time, run_values
from lightning_perf.compare.pair import Pair, compare_metric, logarithms
from lightning_perf.compare.record import Outcome, RunRecord
from lightning_perf.compare.statistics import censored
from lightning_perf.compare.statistics.collapse import clopper_pearson, collapse_limit, fisher_exact_p
from lightning_perf.compare.statistics.describe import describe
from lightning_perf.compare.statistics.drift import measure_drift
from lightning_perf.compare.statistics.margins import non_inferiority
from lightning_perf.compare.statistics.spread import compare_spread
from lightning_perf.compare.statistics.values import Estimate, finite
from lightning_perf.compare.verdict import word_verdict

__all__ = ["InvalidRunsError", "Settings", "UnfairError", "compare_arms"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What was declared before looking at the runs.

    Attributes:
        treatment: Facts under test, by name or group; those that a study declared are added.
        allow: Facts that may differ besides.
        accuracy: Name of the accuracy among the runs' metrics; None finds it by its name.
        margin: The largest loss of accuracy that does not matter, as a share.
        goal: Accuracy for the time to accuracy.
        collapse_below: Accuracy below which a run has collapsed; None derives it from all runs.
        equivalence: Times within this share of each other are equivalent.
        confidence: Coverage of the intervals of all candidates together.
        gates: What the candidates have to hold.
    """

    treatment: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    accuracy: str | None = None
    margin: float = 0.01
    goal: float | None = None
    collapse_below: float | None = None
    equivalence: float = 0.01
    confidence: float = 0.95
    gates: tuple[Gate, ...] = ()


class UnfairError(CompareError):
    """The arms differ in more than what is under test.

    Args:
        baseline: Name of the baseline.
        differences: For each candidate the differences that are not allowed.
    """

    def __init__(self, baseline: str, differences: Mapping[str, tuple[Difference, ...]]) -> None:
        facts = sorted({difference.fact for rows in differences.values() for difference in rows})
        super().__init__(f"The runs differ in more than what is under test: {', '.join(facts)}.")
        self.baseline = baseline
        self.differences = differences


class InvalidRunsError(CompareError):
    """Too few valid runs are left to compare."""


def compare_arms(arms: Mapping[str, Sequence[RunRecord]], settings: Settings | None = None) -> Comparison:
    """Compare arms with the first of them.

    Args:
        arms: The runs of each arm, by its name.
        settings: What was declared before looking.

    Returns:
        The comparison.

    Raises:
        CompareError: There are fewer than two arms, or a run is in more than one place.
        InvalidRunsError: An arm has no finished and valid run.
        UnfairError: Fingerprints differ in what is neither under test nor allowed.
    """
    settings = settings or Settings()
    if len(arms) < 2:
        raise CompareError("A comparison needs two arms. Give the folders of both.")
    names = list(arms)
    _check_each_once([run.path for runs in arms.values() for run in runs])
    attempts = _last_attempts([run for runs in arms.values() for run in runs])
    left_out = {name: _left_out(runs, attempts) for name, runs in arms.items()}
    used = {name: [run for run in runs if run.path not in left_out[name]] for name, runs in arms.items()}
    for name in names:
        if not used[name]:
            reasons = ", ".join(f"{count} {reason}" for reason, count in Counter(left_out[name].values()).items())
            raise InvalidRunsError(f"{name}: no run is left to compare ({reasons or 'there are none'}).")
    everything = [run for runs in used.values() for run in runs]
    blocked = _is_blocked(used)
    treatment = tuple(
        dict.fromkeys([*settings.treatment, *(t for run in everything if run.place for t in run.place.treatment)])
    )
    fairness = {
        name: check_fairness(used[names[0]], used[name], treatment=treatment, allow=settings.allow, blocked=blocked)
        for name in names[1:]
    }
    if any(check.unfair for check in fairness.values()):
        raise UnfairError(names[0], {name: check.unfair for name, check in fairness.items() if check.unfair})

    accuracy = find_accuracy(everything, settings.accuracy)
    values = {run.path: run_values(run, accuracy, settings.goal) for runs in arms.values() for run in runs}
    limit = settings.collapse_below
    if limit is None and accuracy is not None:
        limit = collapse_limit([values[run.path]["accuracy"] for run in everything])
    collapsed = {
        run.path: accuracy is not None and _collapsed(values[run.path]["accuracy"], limit) for run in everything
    }
    points = _points(arms, left_out, values, collapsed)
    of_arm = {name: [point for point in points if point.arm == name and point.left_out is None] for name in names}
    confidence = 1 - (1 - settings.confidence) / (len(names) - 1)
    candidates = []
    gates: list[GateResult] = []
    for name in names[1:]:
        pair = Pair(names[0], name, of_arm, used, blocked, confidence)
        candidate = _candidate(pair, settings, accuracy, fairness[name], arms[names[0]])
        candidates.append(candidate)
        results = {result.metric: result for result in candidate.metrics}
        for gate in settings.gates:
            result = results.get(gate.metric)
            deterministic = result.deterministic if result else False
            gates.append(judge(gate, name, result.estimate if result else None, deterministic=deterministic))
    in_order = [point for point in points if point.left_out is None]
    return Comparison(
        baseline=names[0],
        blocked=blocked,
        confidence=settings.confidence,
        treatment=treatment,
        allowed=settings.allow,
        accuracy_metric=accuracy,
        accuracy_goal=settings.goal,
        collapse_limit=limit,
        arms=tuple(_arm(name, of_arm[name], used[name], left_out[name], accuracy, settings) for name in names),
        candidates=tuple(candidates),
        runs=tuple(points),
        drift=measure_drift(
            [point.values["step_time"] for point in in_order],
            [point.arm for point in in_order],
            [point.block or 0 for point in in_order] if blocked else None,
        ),
        notes=(*_notes(fairness.values(), blocked), *_run_notes(used)),
        gates=tuple(gates),
        equivalence=settings.equivalence,
        hardware=tuple(dict.fromkeys(device for run in everything if (device := _hardware(run)) is not None)),
    )


def _candidate(
    pair: Pair, settings: Settings, accuracy: str | None, fairness: Fairness, baseline: Sequence[RunRecord]
) -> Candidate:
    results = tuple(result for name in METRICS if (result := compare_metric(pair, name)) is not None)
    kept = non_inferiority(pair.difference(*pair.values("accuracy")), settings.margin) if accuracy else None
    counts = [sum(point.collapsed for point in points) for points in pair.points]
    collapse_p = fisher_exact_p(counts[0], len(pair.points[0]), counts[1], len(pair.points[1])) if accuracy else None
    first = None
    if pair.blocked and settings.goal is not None:
        base, candidate = ([reach_time(r, accuracy, settings.goal) for r in records] for records in pair.records)
        first = censored.first_to_reach(base, candidate)
    time_logs = [logarithms(values) for values in pair.values("step_time")]
    accuracies = pair.values("accuracy")
    time_spread = compare_spread(*time_logs, paired=pair.blocked) if len(finite(time_logs[0])) else None
    accuracy_spread = compare_spread(*accuracies, paired=pair.blocked) if accuracy else None
    verdict = word_verdict(
        baseline=pair.baseline,
        candidate=pair.candidate,
        results=results,
        accuracy=kept,
        accuracy_change=next((r.estimate.value for r in results if r.metric == "accuracy"), None),
        collapsed=(counts[0], len(pair.points[0]), counts[1], len(pair.points[1])) if accuracy else None,
        blocked=pair.blocked,
        equivalence=settings.equivalence,
    )
    return Candidate(
        arm=pair.candidate,
        verdict=verdict,
        metrics=results,
        accuracy=kept,
        collapse_p=collapse_p,
        first_to_accuracy=first,
        time_spread=time_spread,
        accuracy_spread=accuracy_spread,
        differences=fairness.differences,
        prediction=_prediction(baseline, pair.records[1], results),
    )


def _prediction(
    baseline: Sequence[RunRecord], candidate: Sequence[RunRecord], results: Sequence[MetricResult]
) -> Prediction | None:
    """The gain that a profiled run of the baseline promised, for a candidate that is in mixed precision."""
    if not candidate or not all("mixed" in str(run.facts.get("train.precision")) for run in candidate):
        return None
    source = next((run for run in baseline if run.predicted_speedup is not None), None)
    time = next((result.estimate for result in results if result.metric == "step_time"), None)
    if source is None or source.predicted_speedup is None or time is None:
        return None
    low, high = source.predicted_speedup
    measured = time.map(lambda ratio: 1 / ratio)
    held = low <= measured.value <= high if measured.value is not None else None
    return Prediction(source.run_id, low, high, measured, held)


def _hardware(run: RunRecord) -> str | None:
    """The device by name; of a processor with the threads that computed, which its speed depends on."""
    name, threads = run.facts.get("device.name"), run.facts.get("device.threads")
    if name is None:
        return None
    return f"{name}, {threads} thread{'' if threads == 1 else 's'}" if threads is not None else str(name)


def _collapsed(accuracy: float | None, limit: float | None) -> bool:
    """A run whose accuracy is no number has diverged: collapsed as well."""
    return accuracy is None or (limit is not None and accuracy < limit)


def _check_each_once(paths: Iterable[Path]) -> None:
    for path, count in Counter(path.resolve() for path in paths).items():
        if count > 1:
            raise CompareError(f"{path}: this run is given {count} times. Give each arm folders of its own.")


def _last_attempts(runs: Sequence[RunRecord]) -> dict[int, int]:
    """The last attempt of each block: only its runs ran under the same conditions."""
    last: dict[int, int] = {}
    for run in runs:
        if run.place is not None:
            last[run.place.block] = max(run.place.attempt, last.get(run.place.block, 0))
    return last


def _left_out(runs: Sequence[RunRecord], last_attempt: Mapping[int, int]) -> dict[Path, str]:
    """Why runs do not count, by the path of their record."""
    reasons: dict[Path, str] = {}
    for run in runs:
        if run.place is not None and run.place.block == 0:
            reasons[run.path] = "warm-up"
        elif run.outcome is not Outcome.FINISHED:
            reasons[run.path] = run.outcome.value
        elif run.place is not None and run.place.attempt < last_attempt[run.place.block]:
            reasons[run.path] = "of a repeated block"
        elif run.problems:
            reasons[run.path] = f"invalid: {'; '.join(run.problems)}"
    return reasons


def _is_blocked(arms: Mapping[str, Sequence[RunRecord]]) -> bool:
    """Whether all runs are of one study, with at most one run of an arm in a block."""
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
        )
        for order, (run, name) in enumerate(by_start)
    ]


def _arm(
    name: str,
    points: Sequence[Run],
    records: Sequence[RunRecord],
    left_out: Mapping[Path, str],
    accuracy: str | None,
    settings: Settings,
) -> Arm:
    reach = [time for run in records if (time := reach_time(run, accuracy, settings.goal)) is not None]
    collapsed = sum(point.collapsed for point in points)
    unknown = Estimate(None, None, None, settings.confidence, 0, "Clopper–Pearson", "the runs have no accuracy")
    return Arm(
        name=name,
        used=len(points),
        left_out=dict(Counter(left_out.values())),
        collapsed=clopper_pearson(collapsed, len(points)) if accuracy else unknown,
        metrics={
            metric: describe([None if metric == "accuracy" and p.collapsed else p.values[metric] for p in points])
            for metric in METRICS
        },
        reached_goal=sum(time.reached for time in reach) if settings.goal is not None else None,
        median_time_to_accuracy_s=censored.kaplan_meier_median(reach) if reach else None,
    )


def _notes(checks: Iterable[Fairness], blocked: bool) -> tuple[str, ...]:
    notes = []
    if not blocked:
        notes.append(
            "The runs were not blocked: a drift of the machine between the arms looks like a difference of the arms. "
            "The blocks of a study alternate them."
        )
    unchecked = sorted({fact for check in checks for fact in check.unchecked})
    if unchecked:
        notes.append(f"Not recorded by any run, so taken on trust: {', '.join(unchecked)}.")
    return tuple(notes)


def _run_notes(used: Mapping[str, Sequence[RunRecord]]) -> tuple[str, ...]:
    """What single runs leave to be said."""
    notes = []
    for name, runs in used.items():
        remarks = Counter(remark for run in runs for remark in run.remarks)
        notes += [f"{name}: in {count} of {len(runs)} runs {remark}." for remark, count in remarks.items()]
        unread = [run.steps_problem for run in runs if run.steps_problem is not None]
        notes += [f"{name}: a run has no step times, since they cannot be read: {problem}" for problem in unread]
    return tuple(notes)
