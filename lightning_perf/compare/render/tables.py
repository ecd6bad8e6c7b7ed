"""The tables of a comparison as rows of text, so that console and Markdown show the same."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from lightning_perf.compare.records.fairness import SEED_FACTS, likely_cause
from lightning_perf.compare.records.metrics import METRICS, Scale
from lightning_perf.compare.verdicts.comparison import Arm, Comparison, MetricResult, Prediction
from lightning_perf.compare.verdicts.gates import GateOutcome, GateResult
from lightning_perf.compare.verdicts.refusal import Unfair
from lightning_perf.compare.verdicts.verdict import detectable_text
from lightning_perf.statistics.spread import Spread
from lightning_perf.statistics.values import Estimate
from lightning_perf.tables import Table
from lightning_perf.units import (
    NOT_AVAILABLE,
    column_format,
    format_change,
    format_duration,
    format_factor,
    format_points,
    two_digits,
)

__all__ = [
    "arm_table",
    "difference_table",
    "footnotes",
    "gate_table",
    "judged_table",
    "origin",
    "overall_result",
    "result_table",
    "setting_table",
    "title",
    "unfair_tables",
    "what_to_do",
]


def title(comparison: Comparison) -> str:
    """Return the title of a comparison: the baseline, and the verdict on each candidate."""
    verdicts = ", ".join(f"{candidate.arm} {candidate.verdict.kind.value}" for candidate in comparison.candidates)
    return f"Comparison with {comparison.baseline}: {verdicts}"


def overall_result(comparison: Comparison) -> str | None:
    """Return the result of all gates in a sentence; None without gates."""
    count = len(comparison.gates)
    if not count:
        return None
    failed, undecided = (
        sum(gate.outcome is outcome for gate in comparison.gates)
        for outcome in (GateOutcome.FAILED, GateOutcome.INCONCLUSIVE)
    )
    gates = f"{count} gate{'' if count == 1 else 's'}"
    if failed:
        return f"Failed: {failed} of {gates} failed."
    if undecided:
        return f"Inconclusive: {undecided} of {gates} could not be decided."
    return f"Passed: {'the gate' if count == 1 else f'all {gates}'} passed."


def setting_table(comparison: Comparison) -> Table:
    """Return the table of the arms: runs used, revisions of the code, and the command in a study."""
    rows = []
    for arm in comparison.arms:
        revisions = dict.fromkeys(
            run.revision
            for run in comparison.runs
            if run.arm == arm.name and run.left_out is None and run.revision is not None
        )
        rows.append((arm.name, str(arm.used), ", ".join(revisions) or NOT_AVAILABLE, arm.command or NOT_AVAILABLE))
    return Table("Arms", ("", "runs", "code", "command"), tuple(rows))


def origin(comparison: Comparison) -> tuple[str, ...]:
    """Return lines on the hardware, the time of the runs and the version of the tool."""
    starts = [run.started_unix_s for run in comparison.runs if run.started_unix_s is not None]
    lines = [f"Hardware: {', '.join(comparison.hardware) or 'not recorded'}"]
    if comparison.machines:
        lines[0] += f" ({', '.join(comparison.machines)})"
    if starts:
        first, last = (f"{datetime.fromtimestamp(s, timezone.utc):%Y-%m-%d %H:%M}" for s in (min(starts), max(starts)))
        lines.append(f"Runs started: {first} to {last} UTC")
    if comparison.tool_version is not None:
        lines.append(f"Compared with lightning-perf {comparison.tool_version}")
    return tuple(lines)


def arm_table(comparison: Comparison) -> Table:
    """Return the table of all arms by metric: mean, SD, minimum, quartiles, median, p90 and maximum."""
    heads = ("", "n", "mean", "SD", "min", "q1", "median", "q3", "p90", "max")
    rows: list[tuple[str, ...]] = []
    for name, metric in METRICS.items():
        summaries = {arm.name: arm.metrics[name] for arm in comparison.arms if arm.metrics[name].n}
        figures = column_format(metric.unit, [summary.max for summary in summaries.values()])
        if summaries:
            rows.append((f"{metric.title} ({figures.unit})", *[""] * (len(heads) - 1)))
        for arm, s in summaries.items():
            values = (figures.value(value) for value in (s.min, s.q1, s.median, s.q3, s.p90, s.max))
            rows.append((f"  {arm}", str(s.n), figures.value(s.mean), figures.deviation(s.sd), *values))
    return Table("Runs", heads, tuple(rows))


def result_table(comparison: Comparison) -> Table:
    """Return the table of each candidate's change against the baseline, by metric."""
    rows = []
    for candidate in comparison.candidates:
        for result in candidate.metrics:
            title = METRICS[result.metric].title
            p = f"{result.exact.p:.3g}" if result.exact.p is not None else NOT_AVAILABLE
            rows.append(
                (
                    f"{title}, {candidate.arm}",
                    *_change(result, result.estimate),
                    p,
                    _with_interval(*_change(result, result.robust)),
                    _detectable(result),
                )
            )
    heads = (f"against {comparison.baseline}", "change", "interval", "exact p", "Hodges–Lehmann", "detectable")
    return Table("Differences", heads, tuple(rows))


def difference_table(comparison: Comparison) -> Table:
    """Return the table of facts that differ between the arms and are allowed to."""
    rows = [
        (f"{row.fact}, {candidate.arm}", ", ".join(row.baseline), ", ".join(row.candidate), row.allowed_by or "")
        for candidate in comparison.candidates
        for row in candidate.differences
    ]
    return Table("Settings that differ", ("", comparison.baseline, "candidate", "allowed by"), tuple(rows))


def unfair_tables(refusal: Unfair) -> tuple[Table, ...]:
    """Return one table per candidate of the facts that differ although they must not."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for row in refusal.rows:
        rows.setdefault(row.arm, []).append((row.fact, ", ".join(row.baseline), ", ".join(row.candidate)))
    title = "Differences that make the comparison unfair"
    return tuple(Table(title, ("", refusal.baseline, arm), tuple(of_arm)) for arm, of_arm in rows.items())


def what_to_do(refusal: Unfair) -> str:
    """Return the advice after a refusal: the option that allows the most likely cause."""
    if refusal.advice is not None:
        return refusal.advice
    fact = likely_cause({row.fact for row in refusal.rows})
    allow = f"--allow {fact}"
    if fact not in SEED_FACTS and any(
        max(len(row.baseline), len(row.candidate)) > 1 for row in refusal.rows if row.fact == fact
    ):
        return f"{fact} differs between runs of the same arm. If this does not matter, add {allow}."
    return f"If {fact} is the setting that you are testing, add --treatment {fact}. If it does not matter, add {allow}."


def gate_table(comparison: Comparison) -> Table:
    """Return the table of the gates and their outcomes."""
    return judged_table(comparison.gates)


def judged_table(gates: Sequence[GateResult]) -> Table:
    """Return a table of gates and their outcomes."""
    rows = []
    for gate in gates:
        figures = (
            f"{value:.4g}" if value is not None else NOT_AVAILABLE for value in (gate.value, gate.low, gate.high)
        )
        rows.append((f"{gate.gate}, {gate.arm}", gate.outcome.value, *figures, gate.reason or ""))
    return Table("Gates", ("", "outcome", "value", "low", "high", "why"), tuple(rows))


def footnotes(comparison: Comparison) -> tuple[str, ...]:
    """Return the lines below the tables: runs left out, spread, time to accuracy, collapsed runs, drift, notes."""
    lines = [_left_out(arm) for arm in comparison.arms if arm.left_out]
    for candidate in comparison.candidates:
        if candidate.time_spread is not None:
            lines.append(_spread("step time", candidate.arm, comparison.baseline, candidate.time_spread))
        if candidate.accuracy_spread is not None:
            lines.append(_spread("accuracy", candidate.arm, comparison.baseline, candidate.accuracy_spread))
        if candidate.first_to_accuracy is not None and candidate.first_to_accuracy.p is not None:
            test = candidate.first_to_accuracy
            lines.append(
                f"First to reach the accuracy goal within each block: p = {test.p:.3g} "
                f"({test.method}, {test.n} blocks with a clear first)."
            )
        if candidate.prediction is not None and candidate.prediction.measured.value is not None:
            lines.append(_prediction(candidate.arm, candidate.prediction))
    if comparison.accuracy_goal is not None:
        for arm in comparison.arms:
            median = arm.median_time_to_accuracy_s
            when = format_duration(median * 1e9) if median is not None else "not reached by half of the runs"
            lines.append(
                f"{arm.name}: {arm.reached_goal} of {arm.used} runs reached an accuracy of "
                f"{comparison.accuracy_goal:.4g}; median time {when} (runs that missed the goal are censored)."
            )
    for arm in comparison.arms:
        share = arm.collapsed
        if share.value is not None and share.low is not None and share.high is not None and share.value > 0:
            lines.append(
                f"{arm.name}: {share.value:.0%} of {share.n} runs collapsed "
                f"({share.confidence:.0%} interval {share.low:.0%} to {share.high:.0%}).".replace("%", " %")
            )
    change = comparison.drift.change
    if change.value is not None and change.low is not None and comparison.drift.p is not None:
        ends = f"{format_change(1 + change.low)} to {format_change(1 + (change.high or 0))}"
        size = f"{format_change(1 + change.value)} ({ends}, p = {comparison.drift.p:.2g})"
        lines.append(f"Drift of the step time from the first run to the last: {size}.")
    count = len(comparison.candidates)
    if count > 1:
        lines.append(
            f"Per metric, all {count} intervals together hold with {100 * comparison.confidence:.3g} % confidence."
        )
    return (*lines, *comparison.notes)


def _left_out(arm: Arm) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in arm.left_out.items())
    return f"{arm.name}: {arm.used} runs used; left out: {reasons}."


def _spread(what: str, arm: str, baseline: str, spread: Spread) -> str:
    ratio = spread.ratio
    if ratio.value is None or ratio.low is None or ratio.high is None:
        return f"Spread of {what}, {arm} against {baseline}: {spread.reason}."
    needed = f"{spread.runs_needed} runs per arm" if spread.runs_needed else "more than 200 runs per arm"
    p = f"p = {spread.p:.2g}" if spread.p is not None else "no p-value"
    interval = f"{ratio.low:.2f} to {ratio.high:.2f} if runs are normally distributed"
    power = f"{100 * (spread.power or 0):.0f} %"
    return (
        f"Spread of {what}, SD of {arm} over {baseline}: {ratio.value:.2f} ({interval}). Brown–Forsythe {p}; "
        f"it detects such a ratio in {power} of studies of this size; {needed} would detect it in 80 %."
    )


def _prediction(arm: str, prediction: Prediction) -> str:
    outcome = "within" if prediction.held else "outside"
    return (
        f"The profiled run {prediction.run_id} predicted a speed-up of {format_factor(prediction.low)} to "
        f"{format_factor(prediction.high)} for {arm}. Measured: {format_factor(prediction.measured.value)}, {outcome} "
        "the prediction."
    )


def _change(result: MetricResult, estimate: Estimate) -> tuple[str, str]:
    text = format_change if METRICS[result.metric].scale is Scale.RATIO else _points
    if estimate.low is None or estimate.high is None:
        return text(estimate.value), "the same in every run" if result.deterministic else NOT_AVAILABLE
    if estimate.low == estimate.high:
        return text(estimate.value), "the same in every block"
    return text(estimate.value), f"{text(estimate.low)} to {text(estimate.high)}"


def _with_interval(change: str, interval: str) -> str:
    return change if interval == NOT_AVAILABLE else f"{change} ({interval})"


def _points(share: float | None) -> str:
    return format_points(share, "pt")


def _detectable(result: MetricResult) -> str:
    if result.detectable is None:
        return NOT_AVAILABLE
    if METRICS[result.metric].scale is Scale.RATIO:
        return detectable_text(result.detectable)
    return f"{two_digits(100 * result.detectable)} pt"
