"""Batches that were run again: diagnosis of a bad run, origins of overflows, first steps in FP32, shadow steps."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_perf.analysis.precision.shadow import ShadowDrift
from lightning_perf.findings.savings import counted
from lightning_perf.report.labels import count_of
from lightning_perf.report.sections.precision_charts import drift_charts, shadow_charts
from lightning_perf.run_files.numerics.precision import (
    BadRun,
    NumericsDrift,
    RunPrecision,
    loss_text,
)
from lightning_perf.show.blocks import (
    Block,
    Cell,
    Heading,
    Line,
    Span,
    Table,
    TableRow,
    listing,
    rest,
    table,
)
from lightning_perf.units import NOT_AVAILABLE, format_share, with_minus

MAX_ORIGINS = 3
MAX_POINTS = 8


def fp32_section(precision: RunPrecision | None, shadow: ShadowDrift | None, top: int) -> Iterator[Block]:
    """Yield all that batches showed when they were run again; nothing if none was."""
    blocks: list[Block] = []
    bad_run = precision.bad_run if precision is not None else None
    if bad_run is not None:
        blocks += bad_run_blocks(bad_run)
    if precision is not None and precision.loss_scale is not None:
        located = [event for event in precision.loss_scale.events if event.origin is not None]
        blocks += [
            Line(f"Step {event.step} overflowed: {event.origin.value} from {event.origin}.")
            for event in located[:MAX_ORIGINS]
            if event.origin is not None
        ]
    if precision is not None and precision.numerics is not None:
        blocks += first_steps(precision.numerics)
    if shadow is not None:
        blocks += shadow_blocks(shadow, top)
    if blocks:
        yield Heading("Comparison with FP32" if bad_run is None else "Diagnosis")
        yield from blocks


def bad_run_summary(precision: RunPrecision | None) -> Iterator[Line]:
    """Yield the error of a run with a bad loss and its fix in a line: no saving of time matters as much."""
    if precision is not None and precision.bad_run is not None:
        found = precision.bad_run
        yield Line((f"{found.title}. ", Span(f"Fix: {found.action}", "good")), label="Error", label_style="bad")


def bad_run_blocks(found: BadRun) -> Iterator[Block]:
    """Yield the diagnosis of a run that went wrong: the symptom, facts from replays of the batch, and the cure."""
    yield Line(found.title, "bad")
    yield from listing([*found.evidence, Line((Span("Fix: ", "good"), found.action))], indent=3)


def first_steps(drift: NumericsDrift) -> Iterator[Block]:
    """Yield how far the first steps are from those in FP32."""
    yield from drift_charts(drift)
    beyond = drift.beyond_seed_noise
    mixed, fp32, low, high = map(loss_text, (drift.mixed_end, drift.fp32_end, drift.expected_low, drift.expected_high))
    yield Line(
        f"After {counted(len(drift.mixed_losses), 'batch', 'batches')} the loss is {mixed}, in FP32 {fp32}. With other "
        f"seeds, {low}–{high} is expected: {'beyond' if beyond else 'within'} seed noise.",
        "warning" if beyond else "plain",
    )


def shadow_blocks(drift: ShadowDrift, top: int) -> Iterator[Block]:
    """Yield the summary of the shadow steps, some of them, and the layers."""
    yield from shadow_charts(drift)
    cost = f", {format_share(drift.cost_share)} of the fit's time" if drift.cost_share is not None else ""
    yield Line(f"{count_of(len(drift.points), 'shadow step')}{cost}.", "quiet")
    yield Line(" ".join(drift.summary), "warning" if drift.drifting else "plain")
    last = len(drift.points) - 1
    shown = sorted({round(i * last / (MAX_POINTS - 1)) for i in range(MAX_POINTS)})
    yield table(
        ("step", "loss", "loss in FP32", "cosine", "norm ratio"),
        (
            (
                str(point.step),
                _number(point.loss, "#.4g"),
                _number(point.fp32_loss, "#.4g"),
                _number(point.cosine, ".5f"),
                _number(point.norm_ratio, ".4f"),
            )
            for point in (drift.points[i] for i in shown)
        ),
    )
    yield _layers(drift, top)
    yield from rest(len(drift.layers) - top, "", hint="")


def _layers(drift: ShadowDrift, top: int) -> Table:
    rows: list[TableRow] = []
    for layer in drift.layers[:top]:
        lowest, highest = _number(layer.lowest_norm_ratio, ".3f"), _number(layer.highest_norm_ratio, ".3f")
        step = Cell(NOT_AVAILABLE if layer.lowest_step is None else str(layer.lowest_step), layer.lowest_step)
        cosines = _number(layer.lowest_cosine, ".5f"), step, _number(layer.mean_cosine, ".5f")
        ratios = Cell(f"{lowest.text}–{highest.text}", layer.lowest_norm_ratio)
        rows.append((Cell(layer.name, troubled=layer.drifts), *cosines, ratios, layer.unknown))
    return table(
        ("layer", "lowest cosine", "at step", "mean cosine", "norm ratio", "unknown"),
        rows,
        kinds="code figure figure figure figure count",
        definitions={"lowest cosine": "gradient-cosine", "mean cosine": "gradient-cosine", "norm ratio": "norm-ratio"},
        extra=("unknown",),
    )


def _number(value: float | None, pattern: str) -> Cell:
    return Cell(NOT_AVAILABLE if value is None else with_minus(format(value, pattern)), value)
