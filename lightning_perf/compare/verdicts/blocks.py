"""The blocks of a comparison: verdicts, gates, results, differences and runs; and those of a refused one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from lightning_perf.compare.records.fairness import SEED_FACTS, likely_cause
from lightning_perf.compare.records.metrics import METRICS, Scale
from lightning_perf.compare.verdicts.gates import GateOutcome, GateResult
from lightning_perf.show.blocks import (
    Block,
    Cell,
    Context,
    Details,
    Heading,
    Line,
    Span,
    Style,
    Table,
    TableRow,
    listing,
    table,
)
from lightning_perf.statistics.spread import Drift
from lightning_perf.statistics.values import Estimate
from lightning_perf.units import (
    NOT_AVAILABLE,
    column_format,
    format_change,
    format_detectable,
    format_duration,
    format_factor,
    format_points,
    format_ratio,
    format_share,
    two_digits,
)

if TYPE_CHECKING:
    from lightning_perf.compare.verdicts.comparison import Arm, Comparison, MetricResult, Prediction, Unfair


STYLES: dict[GateOutcome, Style] = {
    GateOutcome.PASSED: "good",
    GateOutcome.FAILED: "bad",
    GateOutcome.INCONCLUSIVE: "warning",
}

VERDICT_STYLES: dict[str, Style] = {
    "faster": "good",
    "slower": "bad",
    "equivalent": "command",
    "inconclusive": "warning",
    "diverged": "bad",
    "unfinished": "bad",
}


def comparison_blocks(comparison: Comparison) -> Iterator[Block]:
    """Yield the blocks of a comparison, the verdicts first."""
    verdicts = ", ".join(f"{candidate.arm} {candidate.verdict.kind.value}" for candidate in comparison.candidates)
    title = f"Comparison with {comparison.baseline}: {verdicts}"
    yield Context((Heading(title, level=1), *_overall_result(comparison)))
    yield from verdict_blocks(comparison)
    yield Context(tuple(listing(_origin(comparison))))
    yield gate_table(comparison.gates)
    yield results_table(comparison)
    yield differences_table(comparison)
    tables = arms_table(comparison), metrics_table(comparison), scatter_table(comparison)
    yield Details("Runs", (*tables, *listing(_footnotes(comparison))))


def verdict_blocks(comparison: Comparison, *, paged: bool = False) -> Iterator[Block]:
    """Yield the verdict on each candidate, its details and the next step. On a page, its kind is set apart."""
    for candidate in comparison.candidates:
        verdict = candidate.verdict
        kind = Span(verdict.kind.value, VERDICT_STYLES[verdict.kind.value], outcome=True)
        headline = (kind, " ", verdict.headline) if paged else verdict.headline
        yield Line(headline, "strong", label="Verdict", label_style="strong")
        yield from listing(verdict.details, indent=2)
        if verdict.next:
            yield Line(verdict.next, "good" if paged else "plain", label="Next   ", label_style="strong")
        yield Line()


def unfair_blocks(refusal: Unfair) -> Iterator[Block]:
    """Yield the blocks of a refused comparison: the facts that differ although they must not, and the way out."""
    yield Line(f"Refused as unfair. {refusal.message}", "strong")
    title = "Differences that make the comparison unfair"
    for arm in dict.fromkeys(row.arm for row in refusal.rows):
        rows = ((row.fact, ", ".join(row.baseline), ", ".join(row.candidate)) for row in refusal.rows if row.arm == arm)
        yield table(("", refusal.baseline, arm), rows, title)
    yield from listing(refusal.notes)
    yield Line(way_out(refusal))


def _overall_result(comparison: Comparison) -> Iterator[Line]:
    """Yield the result of all gates in a sentence; nothing without gates."""
    count = len(comparison.gates)
    if not count:
        return
    outcomes = [gate.outcome for gate in comparison.gates]
    failed, undecided = outcomes.count(GateOutcome.FAILED), outcomes.count(GateOutcome.INCONCLUSIVE)
    gates = f"{count} gate{'' if count == 1 else 's'}"
    if failed:
        yield Line(f"Failed: {failed} of {gates} failed.", "strong")
    elif undecided:
        yield Line(f"Inconclusive: {undecided} of {gates} could not be decided.", "strong")
    else:
        yield Line(f"Passed: {'the gate' if count == 1 else f'all {gates}'} passed.", "strong")


ARM_COLORS = 6
"""Colours and symbols of arms. Further arms have them again."""


def arm_place(comparison: Comparison, name: str) -> int:
    """Return the place of an arm among all."""
    return next((place for place, arm in enumerate(comparison.arms) if arm.name == name), 0)


def arm_color(comparison: Comparison, name: str) -> str:
    """Return the name of the colour of an arm, the same in every chart and table."""
    return f"arm-{arm_place(comparison, name) % ARM_COLORS + 1}"


def arm_cell(comparison: Comparison, name: str) -> Cell:
    """Return the name of an arm with its mark."""
    return Cell(name, color=arm_color(comparison, name))


def arms_table(comparison: Comparison) -> Table:
    """Return the arms: runs used and left out, collapsed runs, the goal, revisions of the code, and the command."""
    fisher = {candidate.arm: candidate.collapse_p for candidate in comparison.candidates}
    goal = comparison.accuracy_goal
    rows: list[TableRow] = []
    for arm in comparison.arms:
        used = [run for run in comparison.runs if run.arm == arm.name and run.left_out is None]
        code = ", ".join(dict.fromkeys(run.revision for run in used if run.revision is not None))
        left_out = ", ".join(f"{count} {reason}" for reason, count in arm.left_out.items()) or "none"
        share, ends = arm.collapsed, ""
        if share.value is not None and share.low is not None:
            ends = f" ({format_share(share.low)} to {format_share(share.high)})"
        collapsed = Cell(f"{format_share(share.value)}{ends}", share.value), p_cell(fisher.get(arm.name))
        origin = code or NOT_AVAILABLE, arm.command or NOT_AVAILABLE
        rows.append((arm_cell(comparison, arm.name), arm.used, left_out, *collapsed, *_goal(arm, goal), *origin))
    reached = () if goal is None else (f"reached {goal:g}", "median time to goal")
    heads = ("arm", "runs used", "left out", "collapsed", "Fisher p", *reached, "code", "command")
    kinds = f"name count text figure figure{' count figure' if reached else ''} code code"
    return table(heads, rows, "Arms", kinds, definition="arm", definitions={"collapsed": "collapsed"})


def _goal(arm: Arm, goal: float | None) -> TableRow:
    if goal is None:
        return ()
    median_s = arm.median_time_to_accuracy_s
    time = Cell("fewer than half") if median_s is None else Cell(format_duration(1e9 * median_s), median_s)
    return arm.reached_goal, time


def _origin(comparison: Comparison) -> Iterator[str]:
    """Yield lines on the hardware, the time of the runs and the version of the tool."""
    machines = f" ({', '.join(comparison.machines)})" if comparison.machines else ""
    yield f"Hardware: {', '.join(comparison.hardware) or 'not recorded'}{machines}"
    starts = [run.started_unix_s for run in comparison.runs if run.started_unix_s is not None]
    if starts:
        first, last = (f"{datetime.fromtimestamp(s, timezone.utc):%Y-%m-%d %H:%M}" for s in (min(starts), max(starts)))
        yield f"Runs started: {first} to {last} UTC"
    if comparison.tool_version is not None:
        yield f"Compared with lightning-perf {comparison.tool_version}"


def metrics_table(comparison: Comparison) -> Table:
    """Return the values of all arms by metric: mean, SD, minimum, quartiles, median, p90 and maximum."""
    rows: list[TableRow] = []
    for name, metric in METRICS.items():
        summaries = {arm.name: arm.metrics[name] for arm in comparison.arms if arm.metrics[name].n}
        figures = column_format(metric.unit, [summary.max for summary in summaries.values()])
        title = f"{metric.title} ({figures.unit})" if figures.unit else metric.title
        for arm, s in summaries.items():
            values = (Cell(figures.value(value), value) for value in (s.min, s.q1, s.median, s.q3, s.p90, s.max))
            mean, sd = Cell(figures.value(s.mean), s.mean), Cell(figures.deviation(s.sd), s.sd)
            rows.append((title, arm_cell(comparison, arm), s.n, mean, sd, *values))
    heads = ("metric", "arm", "n", "mean", "SD", "min", "q1", "median", "q3", "p90", "max")
    kinds = "name name count" + " figure" * 8
    return table(heads, rows, "Metrics over the runs used", kinds, definition="box-and-whisker")


def scatter_table(comparison: Comparison) -> Table:
    """Return the spread of each candidate's runs over that of the baseline's, and the power of the comparison."""
    rows: list[TableRow] = []
    for candidate in comparison.candidates:
        for what, spread in (("step time", candidate.time_spread), ("accuracy", candidate.accuracy_spread)):
            if spread is None:
                continue
            ratio, needed = spread.ratio, spread.runs_needed
            ends = f"{format_ratio(ratio.low)} to {format_ratio(ratio.high)}"
            runs = NOT_AVAILABLE if spread.power is None else "more than 200" if needed is None else str(needed)
            interval = ends if ratio.low is not None else spread.reason or NOT_AVAILABLE
            figures = ratio.value, interval, p_cell(spread.p), spread.power, Cell(runs, needed)
            rows.append((what, arm_cell(comparison, candidate.arm), *figures))
    heads = ("of", "candidate", "ratio", "interval", "Brown–Forsythe p", "power", "runs needed")
    title = "Scatter of the runs: SD of the candidate divided by that of the baseline"
    return table(heads, rows, title, "name name ratio text figure share figure", definition="scatter")


def results_table(comparison: Comparison, *, paged: bool = False) -> Table:
    """Return each candidate's change against the baseline, by metric. On a page, the name of one candidate is known."""
    named = not paged or len(comparison.candidates) > 1
    rows: list[TableRow] = []
    for candidate in comparison.candidates:
        for result in candidate.metrics:
            change, interval = change_text(result, result.estimate)
            if paged and result.estimate.value is None:
                interval = result.estimate.reason or interval
            rows.append(
                [
                    METRICS[result.metric].title + (f", {candidate.arm}" if named else ""),
                    Cell(change, result.estimate.value),
                    interval,
                    p_cell(result.exact.p),
                    Cell(_with_interval(*change_text(result, result.robust)), result.robust.value),
                    Cell(_detectable(result), result.detectable),
                ]
            )
    heads = (f"against {comparison.baseline}", "change", "interval", "exact p", "Hodges–Lehmann", "detectable")
    definitions = {
        "interval": "interval",
        "exact p": "exact-p",
        "Hodges–Lehmann": "hodges-lehmann",
        "detectable": "detectable-difference",
    }
    return table(heads, rows, "Differences", definition="change", definitions=definitions)


def differences_table(comparison: Comparison) -> Table:
    """Return the facts that differ between the arms and are allowed to."""
    rows = (
        (
            row.fact,
            arm_cell(comparison, each.arm),
            ", ".join(row.baseline),
            ", ".join(row.candidate),
            row.allowed_by or "",
        )
        for each in comparison.candidates
        for row in each.differences
    )
    heads = ("fact", "candidate", comparison.baseline, "candidate's value", "allowed as")
    title = "Differences between the arms, all of them declared"
    return table(heads, rows, title, "code name text text text", definition="fair-comparison")


def p_cell(p: float | None) -> Cell:
    """Return a p-value."""
    return Cell(NOT_AVAILABLE if p is None else f"{p:.3g}", p)


def gate_table(gates: Sequence[GateResult]) -> Table:
    """Return gates and their outcomes."""
    rows: list[TableRow] = []
    for gate in gates:
        figures = (
            Cell(f"{value:.4g}" if value is not None else NOT_AVAILABLE, value)
            for value in (gate.value, gate.low, gate.high)
        )
        troubled = gate.outcome is not GateOutcome.PASSED
        outcome = Cell(gate.outcome.value, troubled=troubled, style=STYLES[gate.outcome])
        rows.append([f"{gate.gate}, {gate.arm}", outcome, *figures, gate.reason or ""])
    return table(("", "outcome", "value", "low", "high", "why"), rows, "Gates")


def way_out(refusal: Unfair) -> str:
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


def _footnotes(comparison: Comparison) -> Iterator[str]:
    """Yield the lines below the tables: time to accuracy, prediction, drift, notes."""
    for candidate in comparison.candidates:
        if candidate.first_to_accuracy is not None and candidate.first_to_accuracy.p is not None:
            test = candidate.first_to_accuracy
            yield (
                f"First to reach the accuracy goal within each block: p = {test.p:.3g} "
                f"({test.method}, {test.n} blocks with a clear first)."
            )
        if candidate.prediction is not None and candidate.prediction.measured.value is not None:
            yield _prediction(candidate.arm, candidate.prediction)
    if comparison.drift.change.low is not None and comparison.drift.p is not None:
        yield f"Drift of the step time from the first run to the last: {drift_text(comparison.drift)}."
    count = len(comparison.candidates)
    if count > 1:
        yield f"Per metric, all {count} intervals together hold with {100 * comparison.confidence:.3g} % confidence."
    yield from comparison.notes


def drift_text(drift: Drift) -> str:
    """Return the change from the first run to the last, with its interval."""
    change = drift.change
    if change.value is None:
        return str(change.reason)
    if change.low is None or change.high is None:
        return f"{format_change(1 + change.value)} ({change.reason})"
    ends = f"{format_change(1 + change.low)} to {format_change(1 + change.high)}"
    return f"{format_change(1 + change.value)} ({ends}{'' if drift.p is None else f', p = {drift.p:.2g}'})"


def _prediction(arm: str, prediction: Prediction) -> str:
    outcome = "within" if prediction.held else "outside"
    return (
        f"The profiled run {prediction.run_id} predicted a speed-up of {format_factor(prediction.low)} to "
        f"{format_factor(prediction.high)} for {arm}. Measured: {format_factor(prediction.measured.value)}, {outcome} "
        "the prediction."
    )


def change_text(result: MetricResult, estimate: Estimate) -> tuple[str, str]:
    """Return an estimate of a change as text, and its interval."""
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
        return format_detectable(result.detectable)
    return f"{two_digits(100 * result.detectable)} pt"
