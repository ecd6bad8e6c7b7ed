"""The blocks of a comparison of two recordings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_perf.analysis.comparability import Comparability
from lightning_perf.analysis.diff import DiffRow, DiffTable, FitDiff, MemoryDiff
from lightning_perf.analysis.precision.amp_gain import AmpCheck
from lightning_perf.report.labels import CATEGORY_LABELS
from lightning_perf.report.sentences import mismatch_sentence, throughput_sentence
from lightning_perf.show.blocks import (
    Block,
    Cell,
    Details,
    Heading,
    Line,
    Plot,
    Span,
    Style,
    Table,
    TableRow,
    note,
    rest,
    table,
)
from lightning_perf.show.kernel_text import kernel_text
from lightning_perf.show.plots import bars, names_axis, of_total, time_axis
from lightning_perf.units import counted, format_bytes, format_duration, format_rate, format_ratio

if TYPE_CHECKING:
    from lightning_perf.report.compared import Compared

MOST_ROWS = 10_000
"""Rows of a table on the page, which bound its size."""

MOST_BARS = 12

NOTABLE_SHARE = 0.01
"""From this share of a table's whole time on, a change is coloured."""

STYLES: dict[str, Style] = {
    "faster": "good",
    "slower": "bad",
    "same": "quiet",
    "appeared": "warning",
    "vanished": "command",
}


def diff_blocks(compared: Compared, top: int) -> Iterator[Block]:
    """Yield the blocks of a comparison of two recordings, its tables cut to their first rows."""
    checked, changes = compared.comparability, _all_changes(compared, top)
    if checked.mismatches:
        yield from _mismatches(checked)
    yield _headline(compared)
    yield from _remarks(compared)
    yield from map(note, compared.notes)
    yield from changes.pop("diff_categories")
    yield Details("Figures", tuple(chain.from_iterable(changes.values())))


def diff_parts(compared: Compared) -> dict[str, Iterable[Block]]:
    """Return the blocks of each part of the page of two recordings."""
    checked = compared.comparability
    return {
        "mismatches": [Heading("Not comparable"), *_mismatches(checked)] if checked.mismatches else [],
        "step": [*_step(compared), *map(note, compared.notes)],
        "categories": _categories(compared.diff.categories),
        **_all_changes(compared, MOST_ROWS),
    }


def _all_changes(compared: Compared, top: int) -> dict[str, Iterable[Block]]:
    """Return the parts that the console and the page have in common."""
    diff, fit, whole = compared.diff, compared.fit, len(CATEGORY_LABELS)
    parts: dict[str, Iterable[Block]] = {
        "diff_categories": _changes(
            "By category", diff.categories, "category", "step-time-breakdown", whole, CATEGORY_LABELS
        )
    }
    for part, title, changes, noun, definition in (
        ("operators_device", "Operators, device self time", diff.operators_device, "operator", "device-self-time"),
        ("operators_host", "Operators, host self time", diff.operators_host, "operator", "host-self-time"),
        ("kernels", "Kernels, copies and memsets", diff.kernels, "kernel", "kernel"),
    ):
        parts[f"diff_{part}"] = _changes(title, changes, noun, definition, top)
    parts["memory"] = (block for memory in compared.memory for block in _memory(memory))
    if fit is not None:
        title, definition = "Time of the whole fit", "time-of-the-whole-fit"
        table_of_fit = _changes(title, fit.groups, "part", definition, len(fit.groups.rows), {}, of_what="of the fit")
        parts["diff_fit"] = chain(table_of_fit, _fit_sentences(fit))
    if compared.compilation:
        parts["compilation"] = [Heading("Compilation", definition="compilation"), Line(compared.compilation)]
    return parts


def _categories(changes: DiffTable) -> Iterator[Block]:
    """Yield the step time of both recordings by category, as two bars."""
    order = list(CATEGORY_LABELS)
    rows = sorted(
        (row for row in changes.rows if row.before_ns or row.after_ns), key=lambda row: order.index(row.name or "")
    )
    totals = [sum(row.before_ns or 0.0 for row in rows), sum(row.after_ns or 0.0 for row in rows)]
    unit, size_ns = time_axis(max(totals))
    traces = []
    for row in rows:
        times = [row.before_ns, row.after_ns]
        texts = [f"{CATEGORY_LABELS[row.name or '']}: {of_total(*each)}" for each in zip(times, totals, strict=True)]
        lengths = [(time or 0.0) / size_ns for time in times]
        traces.append(bars(lengths, ["before", "after"], texts, _color(row.name), orientation="h"))
    yield Heading("Step time by category", definition="step-time-breakdown")
    yield Plot(
        "Step time by category, before and after. The table has the figures.",
        tuple(traces),
        {"barmode": "stack", "xaxis": {"title": f"{unit} per step"}, "yaxis": {"autorange": "reversed"}},
        height=170,
        legend=tuple((CATEGORY_LABELS[row.name or ""], _color(row.name)) for row in rows),
    )


def _changes(
    title: str,
    changes: DiffTable | None,
    noun: str,
    definition: str,
    top: int,
    labels: dict[str, str] | None = None,
    *,
    of_what: str = "per step",
) -> Iterator[Block]:
    """Yield a table of changes. Of names without labels, such as those of operators, the largest ones are also bars."""
    rows = [row for row in changes.rows if row.before_ns or row.after_ns] if changes is not None else []
    if changes is None or not rows:
        return
    yield Heading(title, definition=definition, aside=f"{_signed(changes.change_ns)} {of_what} in total")
    shown = [row for row in rows if row.verdict != "same"][:MOST_BARS]
    if labels is None and len(shown) > 1:
        yield _largest(shown, changes, noun)
    yield changes_table(changes, noun, labels, top)
    hint = f": this table lists the {MOST_ROWS:,} largest of all changes" if top == MOST_ROWS else ""
    yield from rest(len(rows) - top, "", hint)


def _largest(rows: Sequence[DiffRow], changes: DiffTable, noun: str) -> Plot:
    comparable = all(row.verdict != "incomparable" for row in changes.rows)
    texts = [
        f"{_name(row)}\n{_signed(row.change_ns)}: {format_duration(row.before_ns)} → {format_duration(row.after_ns)}"
        for row in rows
    ]
    colors = [
        ("high" if row.change_ns > 0 else "good") if comparable and _is_notable(row, changes) else "ink-soft"
        for row in rows
    ]
    title = f"change in ms per step{' (left is faster)' if comparable else ''}"
    lengths = [row.change_ns / 1e6 for row in rows]
    return Plot(
        f"The largest changes by {noun}. The table below has all of them.",
        (bars(lengths, list(range(len(rows))), texts, colors, orientation="h"),),
        {"xaxis": {"title": title, "zerolinecolor": "--ink-soft"}, "yaxis": names_axis([_name(row) for row in rows])},
        height=70 + 24 * len(rows),
    )


def changes_table(
    changes: DiffTable, noun: str, labels: dict[str, str] | None = None, top: int = MOST_ROWS, title: str = ""
) -> Table:
    """Return the changes of a table, the largest first."""
    rows = [row for row in changes.rows if row.before_ns or row.after_ns][:top]
    names = [_named(row, whole=top == MOST_ROWS) for row in rows]
    most = max((abs(row.change_ns) for row in rows), default=0.0) or 1.0
    counted = any(row.before_calls is not None or row.after_calls is not None for row in rows)
    calls = ("calls\nbefore", "calls\nafter") if counted else ()
    return table(
        (noun, "before", "after", "change", "ratio", *calls, "outcome"),
        (
            (
                name if labels is None else Cell(labels.get(row.name or "", name.text), color=_color(row.name)),
                row.before_ns,
                row.after_ns,
                Cell(_signed(row.change_ns), row.change_ns, bar=abs(row.change_ns) / most),
                row.ratio,
                *((row.before_calls, row.after_calls) if counted else ()),
                _outcome(row, changes),
            )
            for name, row in zip(names, rows, strict=True)
        ),
        title,
        f"{'code' if labels is None else 'name'} duration duration duration ratio{' count' * len(calls)} text",
    )


def _named(row: DiffRow, *, whole: bool) -> Cell:
    """Return the name of a row. Pages have the whole name of a kernel next to its short form."""
    name, short = _name(row), kernel_text(_name(row))
    return Cell(name, short=short if short != name else "") if whole else Cell(short)


def _name(row: DiffRow) -> str:
    return "(no operator)" if row.name is None else row.name


def _color(name: str | None) -> str:
    """Return the colour of a category. A part of one has that of the whole."""
    return next((whole for whole in ("memcpy", "runtime") if name and name.startswith(f"{whole}_")), name or "unknown")


def _signed(time_ns: float) -> str:
    return f"{'+' if time_ns > 0 else ''}{format_duration(time_ns)}"


def _is_notable(row: DiffRow, changes: DiffTable) -> bool:
    """Return whether a change is large enough to be coloured: smaller ones are often noise."""
    return abs(row.change_ns) >= NOTABLE_SHARE * max(changes.before_ns, changes.after_ns)


def _outcome(row: DiffRow, changes: DiffTable) -> Cell:
    if row.verdict == "incomparable":
        return Cell("")
    return Cell(row.verdict, style=STYLES[row.verdict] if _is_notable(row, changes) else "quiet")


def _headline(compared: Compared) -> Line:
    step = compared.step
    if compared.comparability.mismatches:
        return Line(f"{compared.headline}. Neither is called faster.")
    average = "median" if compared.usual_step is not None else "mean"
    ratio = f" ({average}, {format_ratio(step.ratio)})" if step.ratio is not None else ""
    return Line((f"{compared.headline}{ratio}: ", Span(step.verdict, STYLES[step.verdict])))


def _remarks(compared: Compared) -> Iterator[Line]:
    """Yield the throughput, the limits of one pair of recordings, and the prediction of mixed precision."""
    diff, checked = compared.diff, compared.comparability
    if checked.throughput is not None:
        yield Line(throughput_sentence(checked.throughput))
    recorded = f"{diff.before_steps:,} and {counted(diff.after_steps, 'recorded step')}"
    if compared.usual_step is not None:
        means = f"The step time is without the profiler. The changes below are means of {recorded}."
    else:
        means = f"Means of {recorded}."
    yield Line(
        f"{means} One pair of recordings shows what changed, but cannot show that it would change again.", "quiet"
    )
    if checked.unchecked:
        yield Line(f"Not recorded by both, so not checked: {', '.join(checked.unchecked)}.", "quiet")
    if compared.mixed_precision is not None:
        yield _prediction(compared.mixed_precision)


def _step(compared: Compared) -> Iterator[Block]:
    """Yield the outcome for the step time, and the figures that it comes from."""
    step = compared.step
    yield Heading("Step time", definition="difference-of-two-runs")
    yield replace(_headline(compared), style="strong")
    yield Line(f"{format_duration(step.before_ns)} in {', '.join(compared.before)}", label="Before")
    yield Line(f"{format_duration(step.after_ns)} in {', '.join(compared.after)}", label="After")
    yield Line(_signed(step.change_ns), label="Change")
    yield from _remarks(compared)


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
        change = Cell(f"{'+' if after > before else ''}{format_bytes(after - before)}", after - before)
        rows.append((category, before, after, change))
    yield table(("", "before", "after", "change"), rows, kinds="name bytes bytes figure")


def _fit_sentences(fit: FitDiff) -> Iterator[Line]:
    sentences = []
    if fit.steps_before != fit.steps_after:
        sentences.append(f"The fits have {fit.steps_before:,} and {counted(fit.steps_after, 'step')}.")
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
