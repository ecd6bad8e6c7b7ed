"""The precision of a run on the console, and its effect on loss and gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.text import Text

from lightning_perf.findings.pages import rule_page_url
from lightning_perf.report.console.layout import hanging, label, table
from lightning_perf.report.labels import count_of
from lightning_perf.run_files.numerics.loss_scale import OverflowOrigin
from lightning_perf.run_files.numerics.precision import (
    BadRun,
    LayerDrift,
    LayerUnderflow,
    LossScaleHistory,
    NumericsDrift,
    PrecisionMistake,
    PrecisionSetting,
    RunPrecision,
    UnderflowTable,
)
from lightning_perf.terminal_text import plain, prose
from lightning_perf.units import NOT_AVAILABLE, format_count, format_duration, format_share

__all__ = ["bad_run_section", "mistake_line", "mistakes_section", "precision_section"]

MAX_ORIGINS = 3
MAX_KEPT = 6


def precision_section(precision: RunPrecision, top: int) -> RenderableType:
    """Return the precision, the loss scale, gradient underflow, and the comparison with FP32.

    Args:
        precision: The precision of the run.
        top: Rows of the table of layers.
    """
    parts: list[RenderableType] = list(_setting(precision.setting))
    if precision.loss_scale is not None:
        parts += _loss_scale(precision.loss_scale)
    if precision.underflow is not None:
        parts += _underflow(precision.underflow, top)
    if precision.numerics is not None:
        parts += _numerics(precision.numerics)
    return Group(*parts)


def mistakes_section(mistakes: Sequence[PrecisionMistake]) -> Iterator[RenderableType]:
    """Yield one paragraph for each mistake in the use of 16-bit precision: its place, evidence and fix."""
    yield Text("\nMistakes in mixed precision", style="bold")
    for number, mistake in enumerate(mistakes, start=1):
        yield hanging(f"{number}.", mistake_line(mistake), gap=1)
        fix = Text.assemble(("Fix: ", "green"), prose(mistake.action))
        lines = [*(prose(line) for line in mistake.evidence), fix]
        yield Padding(Text("\n").join(lines), (0, 0, 0, 3))
    yield Text.assemble("About a mistake: ", plain(f"lightning-perf explain {mistakes[0].kind}", "cyan"))


def bad_run_section(found: BadRun) -> Iterator[RenderableType]:
    """Yield the diagnosis of a run that went wrong: the symptom, facts from replays of the batch, and the cure."""
    yield Text("\nDiagnosis", style="bold")
    yield prose(found.title, "red")
    fix = Text.assemble(("Fix: ", "green"), prose(found.action))
    yield Padding(Text("\n").join([*(prose(line) for line in found.evidence), fix]), (0, 0, 0, 3))


def mistake_line(mistake: PrecisionMistake) -> Text:
    """Return the title of a mistake with its place, its ID as a link, and its severity."""
    style = "red" if mistake.severity == "high" else "yellow"
    linked = Text(mistake.kind, style=Style(link=rule_page_url(mistake.kind)))
    return Text.assemble(prose(f"{mistake.title}{mistake.where}"), "  [", linked, " · ", (mistake.severity, style), "]")


def _setting(setting: PrecisionSetting) -> Iterator[Text]:
    facts = [setting.precision, str(setting.fp32)]
    if setting.weight_cache is not None:
        facts.append(f"autocast's weight cache {'on' if setting.weight_cache else 'off'}")
    yield plain(" · ".join(facts))
    if setting.note is not None:
        yield plain(setting.note, "yellow")
    if setting.keep_fp32:
        more = len(setting.keep_fp32) - MAX_KEPT
        yield plain(f"Kept in FP32: {', '.join(setting.keep_fp32[:MAX_KEPT])}{f' and {more} more' if more > 0 else ''}")


def _loss_scale(history: LossScaleHistory) -> Iterator[Text]:
    ends = history.initial_scale, history.final_scale
    beyond = (history.lowest_scale, history.highest_scale) != (min(ends), max(ends))
    between = f" ({format_count(history.lowest_scale)}–{format_count(history.highest_scale)})" if beyond else ""
    yield Text(
        f"Loss scale {format_count(ends[0])} at the start, {format_count(ends[1])} at the end{between} · "
        f"{format_count(history.skipped_steps)} of {count_of(history.attempts, 'step')} skipped, "
        f"{format_duration(history.wasted_ns)} wasted · goodput {format_share(history.goodput)}"
    )
    if not history.finished:
        yield Text("The run did not end normally: this is its last known state.", style="yellow")
    if history.scheduler_steps_on_skips:
        yield Text(
            f"Learning-rate schedulers made {count_of(history.scheduler_steps_on_skips, 'step')} on skipped optimizer "
            "steps, so the schedule is that far ahead of the weights.",
            style="yellow",
        )
    located = [event for event in history.events if event.origin is not None]
    for event in located[:MAX_ORIGINS]:
        if event.origin is not None:
            yield plain(f"Step {event.step} overflowed: {_origin(event.origin)}.")


def _origin(origin: OverflowOrigin) -> str:
    if not origin.module:
        return f"the loss itself was {origin.value}"
    return f"the first {origin.value} appeared in {origin.module}, {origin.what}"


def _underflow(found: UnderflowTable, top: int) -> Iterator[RenderableType]:
    rows = sorted(found.layers, key=lambda layer: (not layer.underflows, -layer.subnormal_share))
    named = len(found.underflowing)
    yield Text(
        f"Gradients of {count_of(found.samples, 'sampled step')}: "
        + (f"{count_of(named, 'layer')} of {len(rows)} underflow in fp16" if named else "no layer underflows in fp16")
        + (f" · the scale may double {found.headroom_doublings}×" if found.headroom_doublings is not None else ""),
        style="yellow" if named else "",
    )
    shown = [row for row in rows if row.underflows or row.subnormal_share > 0][:top]
    if shown:
        grid = table("layer", "computed in", "subnormal", "zero", "median", "headroom")
        for row in shown:
            grid.add_row(label(row.name, "yellow" if row.underflows else ""), *_cells(row))
        yield grid
    if found.advice is not None:
        yield plain(f"{found.advice.text}.", "bold")


def _cells(row: LayerUnderflow) -> tuple[str, ...]:
    headroom = NOT_AVAILABLE if row.headroom_doublings is None else f"{row.headroom_doublings}×"
    median = NOT_AVAILABLE if row.median_exponent is None else f"2^{row.median_exponent}"
    subnormal = "all vanished" if row.vanished else format_share(row.subnormal_share)
    return row.arithmetic, subnormal, format_share(row.zero_share), median, headroom


def _numerics(drift: NumericsDrift) -> Iterator[Text]:
    beyond = drift.beyond_seed_noise
    yield Text(
        f"After {len(drift.mixed_losses)} batches the loss is {_loss(drift.mixed_end)}, in FP32 "
        f"{_loss(drift.fp32_end)}. With other seeds, {_loss(drift.expected_low)}–{_loss(drift.expected_high)} is "
        "expected: " + ("beyond seed noise." if beyond else "within seed noise."),
        style="yellow" if beyond else "",
    )
    if drift.layers:
        worst = max(drift.layers, key=_error)
        yield plain(
            f"Outputs of {worst.name} are NaN or infinite."
            if worst.relative_error is None
            else f"Outputs differ most from FP32 in {worst.name}: by {format_share(worst.relative_error)}."
        )


def _error(layer: LayerDrift) -> float:
    return math.inf if layer.relative_error is None else layer.relative_error


def _loss(value: float | None) -> str:
    return "NaN or infinite" if value is None else f"{value:.4g}"
