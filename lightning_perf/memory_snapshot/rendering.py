"""The report of a memory snapshot, and the comparison of two, on the console and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.padding import Padding

from lightning_perf.memory_snapshot.compared import BytesChange, DeviceChange, LineChange, MemoryDiff
from lightning_perf.memory_snapshot.document import DeviceMemory, MemoryGroup, MemoryReport, Moment, OutOfMemory
from lightning_perf.report.console.render import ReportConsole
from lightning_perf.report.labels import MEMORY_LABELS, count_of
from lightning_perf.tables import Table, escape, markdown_table, print_table
from lightning_perf.terminal_text import prose
from lightning_perf.units import NOT_AVAILABLE, format_bytes, format_change, format_count, format_duration, format_share

__all__ = ["diff_to_markdown", "print_diff", "print_report", "report_to_markdown"]

FREE_LABEL = "free in the allocator"

SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "expandable_segments", "max_split_size")
"""Settings that change how memory is divided."""


@dataclass(frozen=True)
class _Line:
    """A sentence, a heading, or a remark.

    Attributes:
        text: The text.
        style: A style of rich.
    """

    text: str
    style: str = ""


_Part = _Line | Table


def print_report(report: MemoryReport, *, file: IO[str] | None, top: int, width: int | None) -> None:
    """Print the report of a snapshot; see `MemoryReport.print`."""
    _print(_report_parts(report, top), file, width)


def report_to_markdown(report: MemoryReport, *, top: int) -> str:
    """Return the report of a snapshot as Markdown; see `MemoryReport.to_markdown`."""
    return _markdown(_report_parts(report, top))


def print_diff(compared: MemoryDiff, *, file: IO[str] | None, top: int, width: int | None) -> None:
    """Print the comparison of two snapshots; see `MemoryDiff.print`."""
    _print(_diff_parts(compared, top), file, width)


def diff_to_markdown(compared: MemoryDiff, *, top: int) -> str:
    """Return the comparison of two snapshots as Markdown; see `MemoryDiff.to_markdown`."""
    return _markdown(_diff_parts(compared, top))


def _print(parts: Iterator[_Part], file: IO[str] | None, width: int | None) -> None:
    console = ReportConsole(file=file, width=width, highlight=False, emoji=False, markup=False)
    for part in parts:
        if isinstance(part, Table):
            if part.rows:
                console.print()
                print_table(_unbroken(part), console)
        elif part.style == "dim":
            console.print(Padding(prose(f"Note: {part.text}", "dim"), (0, 0, 0, 2)))
        else:
            console.print(prose(part.text, part.style))


def _unbroken(table: Table) -> Table:
    """Keep each figure on one line with its unit."""
    cells = tuple(tuple(prose(cell).plain for cell in row) for row in table.rows)
    return Table(table.title, table.columns, cells)


def _markdown(parts: Iterator[_Part]) -> str:
    blocks = []
    for part in parts:
        if isinstance(part, Table):
            if part.rows:
                blocks += [f"### {escape(part.title)}", markdown_table(part)]
        elif part.style == "bold":
            blocks.append(f"**{escape(part.text)}**")
        else:
            blocks.append(f"> {escape(part.text)}" if part.style == "dim" else escape(part.text))
    return "\n\n".join(blocks) + "\n"


def _report_parts(report: MemoryReport, top: int) -> Iterator[_Part]:
    if not report.devices:
        yield _Line(f"{Path(report.source).name} holds no memory and no events.", "bold")
    named = len(report.devices) > 1
    for device in report.devices:
        yield from _device_parts(device, top, named=named)
    for note in report.notes:
        yield _Line(note, "dim")
    settings = {name: report.settings[name] for name in SETTINGS if report.settings.get(name, "-1") != "-1"}
    if settings:
        yield _Line(f"Allocator: {', '.join(f'{name}={value}' for name, value in settings.items())}")


def _device_parts(device: DeviceMemory, top: int, *, named: bool) -> Iterator[_Part]:
    yield _Line(_headline(device, named), "bold")
    yield _Line(
        f"At the end: {format_bytes(device.end.allocated_bytes)} allocated of {format_bytes(device.reserved_bytes)} "
        f"reserved. {_free_sentence(device)}"
    )
    for error in device.out_of_memory[-3:]:
        yield _Line(_error_sentence(error), "bold")
    if device.growth is not None:
        growth = device.growth
        yield _Line(
            f"Possible leak: the lowest memory within a step grew by {format_bytes(growth.growth_bytes)} over "
            f"{count_of(growth.steps, 'step')} and never fell. The lines that grew most are below.",
            "bold",
        )
        rows = tuple((row.line, MEMORY_LABELS[row.category], format_bytes(row.growth_bytes)) for row in growth.rows)
        yield Table("Growth from step to step", ("line", "for", "growth"), rows[:top])
    yield _category_table(device)
    yield _group_table(device, top)
    yield Table(
        "Free memory at the end",
        ("segments", "count", "reserved", "free", "largest block", "in used segments", "releasable"),
        tuple(
            (
                _pool_name(pool.size, pool.stream, pool.pool),
                format_count(pool.segments),
                format_bytes(pool.reserved_bytes),
                format_bytes(pool.free_bytes),
                format_bytes(pool.largest_free_bytes),
                format_bytes(pool.fragmented_bytes),
                format_bytes(pool.releasable_bytes),
            )
            for pool in device.pools[:top]
        ),
    )


def _headline(device: DeviceMemory, named: bool) -> str:
    where = f"Device {device.device}: " if named else ""
    if device.history.state == "none":
        return f"{where}{format_bytes(device.end.allocated_bytes)} were allocated when the snapshot was made."
    peak = device.peak
    about = "about " if device.history.conflicts else ""
    return (
        f"{where}The peak is {about}{format_bytes(peak.allocated_bytes)} allocated of "
        f"{format_bytes(peak.reserved_bytes)} reserved, {_place(peak, device)}."
    )


def _place(moment: Moment, device: DeviceMemory) -> str:
    event = f"after event {moment.event:,} of {device.history.events:,}"
    return event if moment.time_ns is None else f"{format_duration(moment.time_ns)} after the first event"


def _free_sentence(device: DeviceMemory) -> str:
    releasable = sum(pool.releasable_bytes for pool in device.pools)
    fragmented = sum(pool.fragmented_bytes for pool in device.pools)
    if not releasable + fragmented:
        return "No block is free."
    return (
        f"Of the free blocks, {format_bytes(releasable)} are in empty segments, which torch.cuda.empty_cache() "
        f"returns, and {format_bytes(fragmented)} in segments that are in use."
    )


def _error_sentence(error: OutOfMemory) -> str:
    module = f" [{error.module}]" if error.module else ""
    text = (
        f"Out of memory: {error.line}{module} asked for {format_bytes(error.requested_bytes)}. "
        f"{format_bytes(error.allocated_bytes)} were allocated, {format_bytes(error.device_free_bytes)} were free on "
        f"the device, and {format_bytes(error.cached_bytes)} were free in the allocator. The largest usable piece had "
        f"{format_bytes(error.largest_free_bytes)}."
    )
    if error.fragmented:
        text += " In one piece they would have sufficed. Try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    return text


def _category_table(device: DeviceMemory) -> Table:
    moments = [device.peak, device.end] if device.history.state != "none" else [device.end]
    names = dict.fromkeys(row.category for moment in moments for row in moment.categories)
    sizes = [{row.category: row.bytes for row in moment.categories} for moment in moments]
    rows = [
        (
            MEMORY_LABELS[name],
            *(
                cell
                for moment, size in zip(moments, sizes, strict=True)
                for cell in (
                    format_bytes(size.get(name, 0)),
                    format_share(size.get(name, 0) / max(1, moment.allocated_bytes)),
                )
            ),
        )
        for name in sorted(names, key=lambda name: -sizes[0].get(name, 0))
    ]
    free = [format_bytes(max(0, moment.reserved_bytes - moment.allocated_bytes)) for moment in moments]
    rows.append((FREE_LABEL, *(cell for size in free for cell in (size, ""))))
    columns = ("use", *(cell for moment in moments for cell in (f"at the {moment.name}", "share")))
    return Table("Memory by use", columns, tuple(rows))


def _group_table(device: DeviceMemory, top: int) -> Table:
    recorded = device.history.state != "none"
    title = "Who held the memory at the peak" if recorded else "Who held the memory"
    groups = [row for row in device.groups if row.peak_bytes]
    rows = [
        (
            _group_name(row),
            _use(row),
            format_bytes(row.peak_bytes),
            format_share(row.peak_bytes / max(1, device.peak.allocated_bytes)),
            format_count(row.peak_blocks),
            format_bytes(row.end_bytes),
        )
        for row in groups[:top]
    ]
    left = groups[top:]
    if left:
        size = sum(row.peak_bytes for row in left)
        rows.append(
            (
                f"{count_of(len(left), 'other line')}",
                "",
                format_bytes(size),
                format_share(size / max(1, device.peak.allocated_bytes)),
                format_count(sum(row.peak_blocks for row in left)),
                format_bytes(sum(row.end_bytes for row in left)),
            )
        )
    columns = ("line", "for", "at the peak" if recorded else "size", "share", "blocks", "at the end")
    return Table(title, columns[: None if recorded else -1], tuple(row[: None if recorded else -1] for row in rows))


def _group_name(row: MemoryGroup | LineChange) -> str:
    return row.line if row.module is None else f"{row.line} [{row.module}]"


def _use(row: MemoryGroup) -> str:
    label = MEMORY_LABELS[row.category]
    return f"{label} ({row.phase})" if row.category == "temporaries" else label


def _pool_name(size: str, stream: int, pool: str) -> str:
    parts = [size]
    if stream:
        parts.append(f"stream {stream:#x}")
    if pool != "0, 0":
        parts.append(f"pool {pool}")
    return ", ".join(parts)


def _diff_parts(compared: MemoryDiff, top: int) -> Iterator[_Part]:
    named = len(compared.devices) > 1
    if not compared.devices:
        yield _Line("The snapshots have no device in common.", "bold")
    for device in compared.devices:
        yield _Line(_change_headline(device, named), "bold")
        yield Table("Totals", ("moment", "before", "after", "change"), _change_rows(device.totals))
        categories = [
            BytesChange(MEMORY_LABELS[row.name], row.before_bytes, row.after_bytes) for row in device.categories
        ]
        yield Table("Memory by use at the peak", ("use", "before", "after", "change"), _change_rows(categories))
        changed = [row for row in device.lines if row.before_peak_bytes != row.after_peak_bytes]
        yield Table(
            "Lines that changed most at the peak",
            ("line", "for", "before", "after", "change"),
            tuple(
                (
                    _group_name(row),
                    MEMORY_LABELS[row.category],
                    format_bytes(row.before_peak_bytes),
                    format_bytes(row.after_peak_bytes),
                    _difference(row.before_peak_bytes, row.after_peak_bytes),
                )
                for row in changed[:top]
            ),
        )
    for note in compared.notes:
        yield _Line(note, "dim")


def _change_headline(device: DeviceChange, named: bool) -> str:
    peak = device.totals[0]
    where = f"Device {device.device}: the" if named else "The"
    change = format_change(peak.after_bytes / peak.before_bytes) if peak.before_bytes else NOT_AVAILABLE
    return (
        f"{where} peak was {format_bytes(peak.before_bytes)} and is {format_bytes(peak.after_bytes)} allocated "
        f"({change})."
    )


def _change_rows(rows: Sequence[BytesChange]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            row.name,
            format_bytes(row.before_bytes),
            format_bytes(row.after_bytes),
            _difference(row.before_bytes, row.after_bytes),
        )
        for row in rows
    )


def _difference(before: int, after: int) -> str:
    if after == before:
        return "±0 B"
    return f"{'+' if after > before else '−'}{format_bytes(abs(after - before))}"
