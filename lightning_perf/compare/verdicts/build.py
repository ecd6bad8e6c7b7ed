"""Build a `Comparison` from run records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from lightning_perf import __version__
from lightning_perf.compare.records.fairness import hardware_name
from lightning_perf.compare.records.metrics import METRICS, QUALITY_METRICS, reach_time
from lightning_perf.compare.records.record import RunRecord
from lightning_perf.compare.verdicts.checks import CHECKS, NOTES, busy_lines
from lightning_perf.compare.verdicts.comparison import Arm, Candidate, Comparison, Prediction
from lightning_perf.compare.verdicts.facts import Facts
from lightning_perf.compare.verdicts.gates import (
    ALLOW_DIVERGENCE,
    ALLOW_FAILURES,
    GateOutcome,
    GateResult,
    Settings,
    judge,
)
from lightning_perf.compare.verdicts.pair import Pair, compare_metric, logarithms
from lightning_perf.compare.verdicts.verdict import Evidence, describe_verdict
from lightning_perf.statistics.collapse import clopper_pearson, first_to_reach, kaplan_meier_median
from lightning_perf.statistics.spread import compare_spread, measure_drift
from lightning_perf.statistics.values import Estimate, Probability, describe, finite


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
    facts = Facts(arms, settings or Settings(), failed_blocks or {})
    for check in CHECKS:
        check(facts)
    quality = facts.quality
    candidates = [_candidate(facts, name) for name in facts.candidates]
    counted = [point for point in facts.points if point.left_out is None]
    return Comparison(
        baseline=facts.baseline,
        blocked=facts.blocked,
        confidence=facts.settings.confidence,
        treatment=facts.treatment,
        allowed=facts.settings.allow,
        accuracy_metric=quality.name if quality is not None and quality.is_accuracy else None,
        accuracy_goal=facts.settings.goal,
        collapse_limit=facts.collapse_limit,
        arms=tuple(_arm(facts, name) for name in arms),
        candidates=tuple(candidates),
        runs=facts.points,
        drift=measure_drift(
            [point.values["step_time"] for point in counted],
            [point.arm for point in counted],
            [point.block or 0 for point in counted] if facts.blocked else None,
        ),
        notes=tuple(line for note in NOTES for line in note(facts)),
        gates=tuple(result for candidate in candidates for result in _gates(facts, candidate)),
        equivalence=facts.settings.equivalence,
        hardware=tuple(dict.fromkeys(device for run in facts.runs if (device := hardware_name(run.facts)) is not None)),
        quality_metric=quality.name if quality is not None else None,
        quality_is=quality.metric if quality is not None else None,
        machines=tuple(dict.fromkeys(str(host) for run in facts.runs if (host := run.facts.get("host.name")))),
        tool_version=__version__,
    )


def _arm(facts: Facts, name: str) -> Arm:
    points, goal, confidence = facts.points_of[name], facts.settings.goal, facts.settings.confidence
    reach = [time for run in facts.used[name] if (time := reach_time(run, facts.quality, goal)) is not None]
    collapsed = sum(point.collapsed for point in points)
    unknown = Estimate(None, None, None, confidence, 0, "Clopper–Pearson", "the runs have no accuracy")
    return Arm(
        name=name,
        used=len(points),
        left_out=dict(Counter(facts.left_out[name].values())),
        collapsed=clopper_pearson(collapsed, len(points)) if facts.quality is not None else unknown,
        metrics={
            metric: describe([None if metric in QUALITY_METRICS and p.collapsed else p.values[metric] for p in points])
            for metric in METRICS
        },
        reached_goal=sum(time.reached for time in reach) if goal is not None else None,
        median_time_to_accuracy_s=kaplan_meier_median(reach) if reach else None,
    )


def _candidate(facts: Facts, name: str) -> Candidate:
    pair, learned, unfinished = facts.pairs[name], facts.learned.get(name), facts.unfinished[name]
    results = tuple(result for metric in METRICS if (result := compare_metric(pair, metric)) is not None)
    kept = learned.kept if learned is not None else None
    is_accuracy = facts.quality is not None and facts.quality.is_accuracy
    step_times = [logarithms(values) for values in pair.values("step_time")]
    fast_steps = pair.fast_steps()
    verdict = describe_verdict(
        Evidence(
            baseline=facts.baseline,
            candidate=name,
            results=results,
            blocked=pair.blocked,
            equivalence=facts.settings.equivalence,
            unfinished=unfinished,
            learned=learned,
            allow=facts.settings.allow,
            busy=busy_lines({arm: facts.arms[arm] for arm in (facts.baseline, name)}),
            fast_steps=fast_steps,
        )
    )
    return Candidate(
        arm=name,
        verdict=verdict,
        metrics=results,
        accuracy=kept if is_accuracy else None,
        collapse_p=learned.collapsed.p if learned is not None else None,
        first_to_accuracy=_first_to_accuracy(facts, pair),
        time_spread=compare_spread(*step_times, paired=pair.blocked) if len(finite(step_times[0])) else None,
        accuracy_spread=compare_spread(*pair.values("accuracy"), paired=pair.blocked) if is_accuracy else None,
        differences=facts.fairness[name].differences,
        prediction=_check_prediction(facts, name, {result.metric: result.estimate for result in results}),
        quality=None if is_accuracy else kept,
        unfinished=unfinished,
        step_time_p25=fast_steps,
    )


def _first_to_accuracy(facts: Facts, pair: Pair) -> Probability | None:
    goal = facts.settings.goal
    if not pair.blocked or goal is None:
        return None
    base, candidate = ([reach_time(run, facts.quality, goal) for run in runs] for runs in pair.records)
    return first_to_reach(base, candidate)


def _check_prediction(facts: Facts, name: str, estimates: Mapping[str, Estimate]) -> Prediction | None:
    """Compare the gain that a profiled run of the baseline, also a warm-up, predicted with the measured gain."""
    records = facts.pairs[name].records[1]
    is_mixed = bool(records) and all("mixed" in str(run.facts.get("train.precision")) for run in records)
    predicted = ((run.run_id, run.predicted_speedup) for run in facts.arms[facts.baseline])
    source, speedup = next(((run, speedup) for run, speedup in predicted if speedup is not None), (None, None))
    if not is_mixed or source is None or speedup is None or "step_time" not in estimates:
        return None
    low, high = speedup
    measured = estimates["step_time"].map(lambda ratio: 1 / ratio)
    held = low <= measured.value <= high if measured.value is not None else None
    return Prediction(source, low, high, measured, held)


def _gates(facts: Facts, candidate: Candidate) -> Iterator[GateResult]:
    pair, learned, allow = facts.pairs[candidate.arm], facts.learned.get(candidate.arm), facts.settings.allow
    results = {result.metric: result for result in candidate.metrics}
    at_limit = None
    if learned is not None and facts.collapse_limit is not None:
        at_limit = pair.estimate(learned.quality.metric, of_collapsed=facts.collapse_limit)
    for gate in facts.settings.gates:
        result = results.get(gate.metric)
        yield judge(
            gate,
            candidate.arm,
            result.estimate if result else None,
            deterministic=result.deterministic if result else False,
            collapsed=learned.collapsed if learned is not None and ALLOW_DIVERGENCE not in allow else None,
            with_collapsed=at_limit,
            diverged=learned is not None and learned.diverged,
        )
    unfinished = facts.unfinished[candidate.arm]
    if facts.settings.gates and unfinished.worse and ALLOW_FAILURES not in allow:
        reason = f"{'blocks with a run' if pair.blocked else 'runs'} that did not finish: {unfinished}"
        yield GateResult(ALLOW_FAILURES, candidate.arm, GateOutcome.FAILED, None, None, None, reason)
