"""A comparison of two recordings on the console."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from rich.console import Group, RenderableType
from rich.text import Text

from lightning_perf.analysis.diff import DiffRow, DiffTable, FitDiff, MemoryDiff
from lightning_perf.analysis.precision.amp_gain import AmpCheck
from lightning_perf.report.compared import Compared
from lightning_perf.report.console.layout import hanging, label, table
from lightning_perf.report.console.render import ReportConsole
from lightning_perf.report.labels import CATEGORY_LABELS
from lightning_perf.report.sentences import mismatch_sentence, throughput_sentence
from lightning_perf.terminal_text import kernel_text, prose
from lightning_perf.units import NOT_AVAILABLE, format_bytes, format_count, format_duration, format_rate, format_ratio

__all__ = ["print_compared", "render_compared"]

STYLES = {"faster": "green", "slower": "red", "same": "dim", "appeared": "yellow", "vanished": "cyan"}


def print_compared(compared: Compared, *, file: IO[str] | None, top: int, width: int | None) -> None:
    """Print a comparison of two recordings; see `Compared.print`."""
    console = ReportConsole(file=file, width=width, highlight=False, emoji=False, markup=False)
    for part in render_compared(compared, top=top):
        console.print(part)


def render_compared(compared: Compared, *, top: int) -> Iterator[RenderableType]:
    """Yield the parts of a comparison of two recordings, in order.

    Args:
        compared: The comparison.
        top: Rows of each table.

    Yields:
        Parts that rich can print.
    """
    step, diff, checked = compared.diff.step, compared.diff, compared.comparability
    if checked.mismatches:
        yield Text(f"Not comparable: {mismatch_sentence(checked)}", style="bold yellow")
        for mismatch in checked.mismatches:
            texts = prose(f"{mismatch.before} before, {mismatch.after} after")
            yield hanging(f"  {mismatch.aspect[0].upper()}{mismatch.aspect[1:]}", texts)
        yield Text(f"{compared.headline}. Neither is called faster.")
    else:
        ratio = f" ({format_ratio(step.ratio)})" if step.ratio is not None else ""
        yield Text.assemble(f"{compared.headline}{ratio}: ", (step.verdict, STYLES[step.verdict]))
    if checked.throughput is not None:
        yield Text(throughput_sentence(checked.throughput))
    yield Text(
        f"Means of {diff.before_steps} and {diff.after_steps} steps. One pair of recordings shows what changed, but "
        "cannot show that it would change again.",
        style="dim",
    )
    if checked.unchecked:
        yield Text(f"Not recorded by both, so not checked: {', '.join(checked.unchecked)}.", style="dim")
    if compared.mixed_precision is not None:
        yield _prediction(compared.mixed_precision)
    for note in compared.notes:
        yield hanging("Note", prose(note), style="yellow")
    yield from _section("By category", diff.categories, len(diff.categories.rows), CATEGORY_LABELS)
    for title, changes in (
        ("Operators, device self time", diff.operators_device),
        ("Operators, host self time", diff.operators_host),
        ("Device work", diff.kernels),
    ):
        if changes is not None and changes.rows:
            yield from _section(title, changes, top, {})
    for memory in compared.memory:
        yield from _memory(memory)
    if compared.fit is not None:
        yield from _fit(compared.fit)
    if compared.compilation is not None:
        yield Text("\nCompilation", style="bold")
        yield prose(compared.compilation.summary)


def _memory(memory: MemoryDiff) -> Iterator[RenderableType]:
    name = "host" if memory.device is None else f"device {memory.device}"
    yield Text(f"\nMemory at the peak, {name}", style="bold")
    grid = table("", "before", "after", "change")
    totals = [(part.category, part.before_bytes, part.after_bytes) for part in memory.parts]
    for category, before, after in (*totals, ("all", memory.before_bytes, memory.after_bytes)):
        sign = "+" if after > before else "-" if after < before else ""
        grid.add_row(
            label(category), format_bytes(before), format_bytes(after), f"{sign}{format_bytes(abs(after - before))}"
        )
    yield grid


def _fit(fit: FitDiff) -> Iterator[RenderableType]:
    yield from _section("Time of the whole fit", fit.groups, len(fit.groups.rows), {})
    lines = []
    if fit.steps_before != fit.steps_after:
        lines.append(f"The fits have {fit.steps_before:,} and {fit.steps_after:,} steps.")
    if fit.first_step_before_ns is not None and fit.first_step_after_ns is not None:
        first, second = format_duration(fit.first_step_before_ns), format_duration(fit.first_step_after_ns)
        lines.append(f"Time to the first step: {first} before, {second} after.")
    if fit.samples_per_second_before is not None and fit.samples_per_second_after is not None:
        first, second = (
            format_rate(rate, "samples") for rate in (fit.samples_per_second_before, fit.samples_per_second_after)
        )
        lines.append(f"Over the whole fit: {first} before, {second} after.")
    if lines:
        yield Text(" ".join(lines))


def _prediction(check: AmpCheck) -> Text:
    low, high = map(format_ratio, check.predicted)
    held = "as predicted" if check.held else "not as predicted"
    return Text(
        f"Mixed precision was predicted to be {low} to {high} as fast. It is {format_ratio(check.measured)}: {held}."
    )


def _section(title: str, changes: DiffTable, top: int, labels: dict[str, str]) -> Iterator[RenderableType]:
    yield Text(f"\n{title}", style="bold")
    grid = table("", "before", "after", "change", "ratio", "calls", "")
    rows = [row for row in changes.rows if row.before_ns or row.after_ns]
    for row in rows[:top]:
        name = "(no operator)" if row.name is None else labels.get(row.name, row.name)
        grid.add_row(
            label(kernel_text(name)),
            format_duration(row.before_ns),
            format_duration(row.after_ns),
            f"{'+' if row.change_ns > 0 else ''}{format_duration(row.change_ns)}",
            format_ratio(row.ratio),
            _calls(row),
            Text(row.verdict, STYLES[row.verdict]) if row.verdict != "incomparable" else "",
        )
    rest = len(rows) - top
    yield Group(grid, *([Text(f"… and {rest:,} more (--top N shows more)", style="dim")] if rest > 0 else []))


def _calls(row: DiffRow) -> str:
    if row.before_calls is None and row.after_calls is None:
        return ""
    before, after = (NOT_AVAILABLE if n is None else format_count(n) for n in (row.before_calls, row.after_calls))
    return before if before == after else f"{before} → {after}"
