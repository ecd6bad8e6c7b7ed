"""The precision of a run, its loss scale, gradient underflow, FP8 layers, and mistakes in its use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lightning_perf.analysis.precision.scales import Fp8Layers
from lightning_perf.findings.pages import rule_page_url
from lightning_perf.report.labels import count_of
from lightning_perf.report.sections.fp32_comparison import bad_run_blocks, first_steps
from lightning_perf.report.sections.precision_charts import scale_chart
from lightning_perf.run_files.numerics.precision import (
    LayerUnderflow,
    LossScaleHistory,
    PrecisionMistake,
    PrecisionSetting,
    RunPrecision,
    UnderflowTable,
)
from lightning_perf.show.blocks import EVERY_ROW, Block, Cell, Heading, Line, Span, Table, TableRow, listing, table
from lightning_perf.units import NOT_AVAILABLE, format_count, format_duration, format_share, with_minus

MAX_KEPT = 6


def precision_section(precision: RunPrecision, top: int) -> Iterator[Block]:
    """Yield the precision, the loss scale and gradient underflow."""
    yield Heading("Precision")
    yield from _setting(precision.setting)
    if precision.loss_scale is not None:
        yield from _loss_scale(precision.loss_scale)
    if precision.underflow is not None:
        yield from _underflow(precision.underflow, top)


def precision_pages(precision: RunPrecision) -> dict[str, Iterable[Block]]:
    """Return the blocks of each part of the page on the precision."""
    parts: dict[str, Iterable[Block]] = {"setting": [Heading("Setting"), *_setting(precision.setting)]}
    if precision.bad_run is not None:
        parts["diagnosis"] = [Heading("Diagnosis"), *bad_run_blocks(precision.bad_run)]
    if precision.mistakes:
        parts["mistakes"] = mistakes_section(precision.mistakes)
    if (history := precision.loss_scale) is not None:
        heading = Heading("Loss scale", definition="loss-scale")
        parts["loss_scale"] = [heading, scale_chart(history), *_loss_scale(history), _scale_events(history)]
    if precision.underflow is not None:
        heading = Heading("Gradient underflow by layer", definition="subnormal-share")
        parts["underflow"] = [heading, *_underflow(precision.underflow, EVERY_ROW)]
    if precision.numerics is not None:
        parts["numerics"] = [Heading("Compared with FP32", definition="seed-noise"), *first_steps(precision.numerics)]
    return parts


def _scale_events(history: LossScaleHistory) -> Table:
    return table(
        ("step", "change", "new scale", "wasted", "where"),
        (
            (
                event.step,
                "overflow: step skipped" if event.kind == "overflow" else event.kind,
                event.scale,
                event.wasted_ns or None,
                "" if event.origin is None else f"{event.origin.value} from {event.origin}",
            )
            for event in history.events
        ),
        "Changes of the loss scale",
        "count text count duration text",
    )


def mistakes_section(mistakes: Sequence[PrecisionMistake]) -> Iterator[Block]:
    """Yield one paragraph for each mistake in the use of 16-bit precision: its place, evidence and fix."""
    yield Heading("Mistakes in mixed precision")
    yield Line("Each fix changes the training, its checkpoints or its logs on purpose. Compare the loss.", "quiet")
    for number, mistake in enumerate(mistakes, start=1):
        yield Line(mistake_text(mistake), label=f"{number}.", gap=1)
        yield from listing([*mistake.evidence, Line((Span("Fix: ", "good"), mistake.action))], indent=3)
    yield Line(("About a mistake: ", Span(f"lightning-perf explain {mistakes[0].kind}", "command")))


def mistake_text(mistake: PrecisionMistake) -> tuple[str | Span, ...]:
    """Return the title of a mistake with its place, its ID as a link, and its severity."""
    severity = Span(mistake.severity, "bad" if mistake.severity == "high" else "warning")
    linked = Span(mistake.kind, link=rule_page_url(mistake.kind))
    return f"{mistake.title}{mistake.where}", "  [", linked, " · ", severity, "]"


def _setting(setting: PrecisionSetting) -> Iterator[Line]:
    facts = [setting.precision, str(setting.fp32)]
    if setting.weight_cache is not None:
        facts.append(f"autocast's weight cache {'on' if setting.weight_cache else 'off'}")
    yield Line(" · ".join(facts))
    if setting.note is not None:
        yield Line(setting.note, "warning")
    if setting.keep_fp32:
        more = len(setting.keep_fp32) - MAX_KEPT
        yield Line(f"Kept in FP32: {', '.join(setting.keep_fp32[:MAX_KEPT])}{f' and {more} more' if more > 0 else ''}")


def _loss_scale(history: LossScaleHistory) -> Iterator[Line]:
    scales = history.scales
    first, last, low, high = map(format_count, (scales[0], scales[-1], min(scales), max(scales)))
    between = "" if {low, high} <= {first, last} else f" ({low}–{high})"
    yield Line(
        f"Loss scale {first} at the start, {last} at the end{between} · "
        f"{format_count(history.skipped_steps)} of {count_of(history.attempts, 'step')} skipped, "
        f"{format_duration(history.wasted_ns)} wasted · goodput {format_share(history.goodput)}"
    )
    if not history.finished:
        yield Line("The run did not end normally: this is its last known state.", "warning")
    if history.scheduler_steps_on_skips:
        yield Line(
            f"Learning-rate schedulers made {count_of(history.scheduler_steps_on_skips, 'step')} on skipped optimizer "
            "steps, so the schedule is that far ahead of the weights.",
            "warning",
        )


def _underflow(found: UnderflowTable, top: int) -> Iterator[Block]:
    rows = sorted(found.layers, key=lambda layer: (not layer.underflows, -layer.subnormal_share))
    named = len(found.underflowing)
    yield Line(
        f"Gradients of {count_of(found.samples, 'sampled step')}: "
        + (f"{count_of(named, 'layer')} of {len(rows)} underflow in fp16" if named else "no layer underflows in fp16")
        + (f" · the scale may double {found.headroom_doublings}×" if found.headroom_doublings is not None else ""),
        "warning" if named else "plain",
    )
    shown = rows if top == EVERY_ROW else [row for row in rows if row.underflows or row.subnormal_share > 0][:top]
    yield table(
        ("layer", "computed in", "subnormal", "zero", "median", "headroom"),
        map(_layer, shown),
        kinds="code figure figure share figure figure",
        definitions={"subnormal": "subnormal-share", "zero": "zero-share", "headroom": "scale-headroom"},
    )
    if found.advice is not None:
        yield Line(f"{found.advice.text}.", "strong")


def _layer(row: LayerUnderflow) -> TableRow:
    headroom = NOT_AVAILABLE if row.headroom_doublings is None else with_minus(f"{row.headroom_doublings}×")
    median = NOT_AVAILABLE if row.median_exponent is None else f"2^{with_minus(str(row.median_exponent))}"
    return (
        Cell(row.name, troubled=row.underflows),
        row.arithmetic,
        Cell(
            "all vanished" if row.vanished else format_share(row.subnormal_share),
            row.subnormal_share,
            bar=row.subnormal_share,
        ),
        row.zero_share,
        Cell(median, row.median_exponent),
        Cell(headroom, row.headroom_doublings),
    )


def fp8_section(found: Fp8Layers, top: int) -> Iterator[Block]:
    """Yield the summary, and the tensors that saturate or underflow most."""
    yield Heading("FP8 layers", definition="fp8-layers")
    yield Line(found.summary, "warning" if any(row.troubled for row in found.rows) else "plain")
    yield Line(f"{count_of(found.samples, 'sampled step')}, {found.library}.", "quiet")
    yield table(
        ("layer", "tensor", "format", "smallest maximum", "largest", "scale", "flushed", "saturated", "steps"),
        (
            (
                Cell(row.layer, troubled=row.troubled),
                row.tensor,
                row.format,
                Cell(f"{row.smallest_largest:.3g}", row.smallest_largest),
                Cell(f"{row.largest:.3g}", row.largest),
                Cell(f"{row.scale:.3g}", row.scale),
                row.flushed,
                row.saturated,
                Cell(f"{row.saturated_steps} of {row.samples}", row.saturated_steps),
            )
            for row in found.rows[:top]
        ),
        kinds="code figure figure figure figure figure share share figure",
        definitions={"flushed": "flushed-share", "saturated": "saturated-share"},
        extra=("smallest maximum",),
    )
