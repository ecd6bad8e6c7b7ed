"""The blocks of a comparison of two recordings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from lightning_perf.analysis.comparability import Comparability
from lightning_perf.analysis.diff import DiffRow, DiffTable, FitDiff, MemoryDiff
from lightning_perf.analysis.precision.amp_gain import AmpCheck
from lightning_perf.report.labels import CATEGORY_LABELS
from lightning_perf.report.sentences import mismatch_sentence, throughput_sentence
from lightning_perf.show.blocks import Block, Cell, Details, Heading, Line, Span, Style, TableRow, note, rest, table
from lightning_perf.show.terminal_text import kernel_text
from lightning_perf.units import NOT_AVAILABLE, format_bytes, format_count, format_duration, format_rate, format_ratio

if TYPE_CHECKING:
    from lightning_perf.report.compared import Compared

STYLES: dict[str, Style] = {
    "faster": "good",
    "slower": "bad",
    "same": "quiet",
    "appeared": "warning",
    "vanished": "command",
}


def diff_blocks(compared: Compared, top: int) -> Iterator[Block]:
    """Yield the blocks of a comparison of two recordings, its tables cut to their first rows."""
    diff, checked = compared.diff, compared.comparability
    if checked.mismatches:
        yield from _mismatches(checked)
    yield _headline(compared)
    yield from _remarks(compared)
    yield from map(note, compared.notes)
    yield from _section("By category", diff.categories, len(diff.categories.rows), CATEGORY_LABELS)
    yield Details("Figures", tuple(_figures(compared, top)))


def diff_parts(compared: Compared) -> dict[str, Iterable[Block]]:
    """Return the blocks of each part of the page of two recordings, except the long tables of its changes."""
    checked = compared.comparability
    return {
        "mismatches": [Heading("Not comparable"), *_mismatches(checked)] if checked.mismatches else [],
        "step": _step(compared),
        "memory": (block for memory in compared.memory for block in _memory(memory)),
        "fit": [] if compared.fit is None else _fit_sentences(compared.fit),
        "compilation": _compilation(compared),
    }


def _headline(compared: Compared) -> Line:
    step = compared.diff.step
    if compared.comparability.mismatches:
        return Line(f"{compared.headline}. Neither is called faster.")
    ratio = f" ({format_ratio(step.ratio)})" if step.ratio is not None else ""
    return Line((f"{compared.headline}{ratio}: ", Span(step.verdict, STYLES[step.verdict])))


def _remarks(compared: Compared) -> Iterator[Line]:
    """Yield the throughput, the limits of one pair of recordings, and the prediction of mixed precision."""
    diff, checked = compared.diff, compared.comparability
    if checked.throughput is not None:
        yield Line(throughput_sentence(checked.throughput))
    yield Line(
        f"Means of {diff.before_steps} and {diff.after_steps} steps. One pair of recordings shows what changed, but "
        "cannot show that it would change again.",
        "quiet",
    )
    if checked.unchecked:
        yield Line(f"Not recorded by both, so not checked: {', '.join(checked.unchecked)}.", "quiet")
    if compared.mixed_precision is not None:
        yield _prediction(compared.mixed_precision)


def _step(compared: Compared) -> Iterator[Block]:
    """Yield the outcome for the step time, and the figures that it comes from."""
    step = compared.diff.step
    yield Heading("Step time", definition="difference-of-two-runs")
    yield replace(_headline(compared), style="strong")
    yield Line(f"{format_duration(step.before_ns)} in {', '.join(compared.before)}", label="Before")
    yield Line(f"{format_duration(step.after_ns)} in {', '.join(compared.after)}", label="After")
    yield Line(f"{'+' if step.change_ns > 0 else ''}{format_duration(step.change_ns)}", label="Change")
    yield from _remarks(compared)


def _figures(compared: Compared, top: int) -> Iterator[Block]:
    diff = compared.diff
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
    yield from _compilation(compared)


def _compilation(compared: Compared) -> Iterator[Block]:
    if compared.compilation is not None:
        yield Heading("Compilation", definition="compilation")
        yield Line(compared.compilation.summary)


def _mismatches(checked: Comparability) -> Iterator[Block]:
    yield Line(f"Not comparable: {mismatch_sentence(checked)}", "warning")
    for mismatch in checked.mismatches:
        aspect = f"  {mismatch.aspect[0].upper()}{mismatch.aspect[1:]}"
        yield Line(f"{mismatch.before} before, {mismatch.after} after", label=aspect)


def _memory(memory: MemoryDiff) -> Iterator[Block]:
    yield Heading(
        f"Memory at the peak, {'host' if memory.device is None else f'device {memory.device}'}",
        definition="peak-memory",
    )
    parts = [(part.category, part.before_bytes, part.after_bytes) for part in memory.parts]
    rows: list[TableRow] = []
    for category, before, after in (*parts, ("all", memory.before_bytes, memory.after_bytes)):
        sign = "+" if after > before else "-" if after < before else ""
        change = Cell(f"{sign}{format_bytes(abs(after - before))}", after - before)
        rows.append((category, before, after, change))
    yield table(("", "before", "after", "change"), rows, kinds="name bytes bytes figure")


def _fit(fit: FitDiff) -> Iterator[Block]:
    yield from _section("Time of the whole fit", fit.groups, len(fit.groups.rows), {})
    yield from _fit_sentences(fit)


def _fit_sentences(fit: FitDiff) -> Iterator[Line]:
    sentences = []
    if fit.steps_before != fit.steps_after:
        sentences.append(f"The fits have {fit.steps_before:,} and {fit.steps_after:,} steps.")
    if fit.first_step_before_ns is not None and fit.first_step_after_ns is not None:
        first, second = format_duration(fit.first_step_before_ns), format_duration(fit.first_step_after_ns)
        sentences.append(f"Time to the first step: {first} before, {second} after.")
    if fit.samples_per_second_before is not None and fit.samples_per_second_after is not None:
        first = format_rate(fit.samples_per_second_before, "samples")
        second = format_rate(fit.samples_per_second_after, "samples")
        sentences.append(f"Over the whole fit: {first} before, {second} after.")
    if sentences:
        yield Line(" ".join(sentences))


def _prediction(check: AmpCheck) -> Line:
    low, high = map(format_ratio, check.predicted)
    held = "as predicted" if check.held else "not as predicted"
    return Line(
        f"Mixed precision was predicted to be {low} to {high} as fast. It is {format_ratio(check.measured)}: {held}."
    )


def _section(title: str, changes: DiffTable, top: int, labels: dict[str, str]) -> Iterator[Block]:
    yield Heading(title)
    rows = [row for row in changes.rows if row.before_ns or row.after_ns]
    yield table(
        ("", "before", "after", "change", "ratio", "calls", ""),
        (
            (
                kernel_text("(no operator)" if row.name is None else labels.get(row.name, row.name)),
                row.before_ns,
                row.after_ns,
                Cell(f"{'+' if row.change_ns > 0 else ''}{format_duration(row.change_ns)}", row.change_ns),
                row.ratio,
                _calls(row),
                Cell(row.verdict, style=STYLES[row.verdict]) if row.verdict != "incomparable" else "",
            )
            for row in rows[:top]
        ),
        kinds="name duration duration figure ratio figure figure",
    )
    yield from rest(len(rows) - top, "")


def _calls(row: DiffRow) -> str:
    if row.before_calls is None and row.after_calls is None:
        return ""
    before, after = (NOT_AVAILABLE if n is None else format_count(n) for n in (row.before_calls, row.after_calls))
    return before if before == after else f"{before} → {after}"
