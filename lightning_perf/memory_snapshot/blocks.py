"""The blocks of a memory snapshot, and of the comparison of two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from lightning_perf.memory_snapshot.allocations import FREE, MIXED, name_line
from lightning_perf.report.labels import MEMORY_LABELS
from lightning_perf.show.blocks import (
    EVERY_ROW,
    Bar,
    Block,
    Cell,
    Figure,
    Figures,
    Heading,
    Line,
    Part,
    Plot,
    Table,
    TableRow,
    note,
    table,
)
from lightning_perf.show.plots import Trace, bars, bytes_axis, line, names_axis, time_axis
from lightning_perf.show.plots import peak as peak_mark
from lightning_perf.units import NOT_AVAILABLE, counted, format_bytes, format_change, format_duration, format_share

if TYPE_CHECKING:
    from lightning_perf.memory_snapshot.compared import DeviceChange, MemoryDiff
    from lightning_perf.memory_snapshot.document import (
        Curve,
        DeviceMemory,
        MemoryGroup,
        MemoryReport,
        Moment,
        OutOfMemory,
        Pool,
        SegmentMap,
    )

SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "expandable_segments", "max_split_size")
"""Settings that change how memory is divided."""

LINE_COLORS = ("arm-1", "arm-2", "arm-3", "arm-4", "arm-5", "before_recording")

SEGMENT_LABELS = MEMORY_LABELS | {FREE: "free", MIXED: "blocks of several uses"}


def snapshot_blocks(report: MemoryReport, top: int) -> Iterator[Block]:
    """Yield the blocks of a snapshot, its tables cut to their first rows."""
    yield from map(note, report.notes)
    if not report.devices:
        yield Line(f"{Path(report.source).name} holds no memory and no events.", "strong")
    for device in report.devices:
        yield from _device_blocks(device, top, named=len(report.devices) > 1)
    settings = {name: report.settings[name] for name in SETTINGS if report.settings.get(name, "-1") != "-1"}
    if settings:
        yield Heading("Allocator")
        yield from (Line(value, label=name) for name, value in settings.items())


def snapshot_parts(report: MemoryReport) -> dict[str, Iterable[Block]]:
    """Return the blocks of each view of a snapshot's page."""
    named = len(report.devices) > 1
    segments = [block for device in report.devices for block in _segments(device, named=named)]
    missing = [] if segments else [Line("The snapshot has no segments.", label="segments")]
    return {"held": snapshot_blocks(report, EVERY_ROW), "segments": segments, "missing": missing}


def _device_blocks(device: DeviceMemory, top: int, *, named: bool) -> Iterator[Block]:
    recorded, history = device.history.state != "none", device.history
    name = f"Device {device.device}" if named else "Memory of the device"
    time = "" if history.time_ns is None else f" over {format_duration(history.time_ns)}"
    yield from (Line(_error_sentence(error), "bad") for error in device.out_of_memory[-top:])
    extent = f"{counted(history.events, 'event')}{time}" if recorded else ""
    yield Heading(name, definition="memory-snapshots", aside=extent)
    yield Figures(tuple(_figures(device, recorded=recorded)))
    if device.curve is not None:
        uses = [(MEMORY_LABELS[area.name], area.name, area.bytes) for area in device.curve.categories]
        lines = [(a.name, color, a.bytes) for a, color in zip(device.curve.lines, LINE_COLORS, strict=False)]
        for title, areas in (("By use", uses), ("By line", lines)):
            yield Heading(title, 4)
            yield _curve(device, device.curve, f"{name}: allocated memory over time {title.lower()}", areas)
    for moment in (device.peak, device.end) if recorded else (device.end,):
        yield Heading(f"Use at the {moment.name}", 4)
        yield Bar(f"{name}: use of the memory at the {moment.name}", tuple(_uses(moment)), alone=True)
    if device.growth is not None:
        yield Heading("Growth from step to step", definition="growth-over-steps")
        yield Line(
            f"Possible leak: the lowest memory within a step grew by {format_bytes(device.growth.growth_bytes)} over "
            f"{counted(device.growth.steps, 'step')} and never fell.",
            "strong",
        )
        rows = ((row.line, _colored(row.category), row.growth_bytes) for row in device.growth.rows[:top])
        yield table(("line", "for", "growth"), rows, kinds="code text bytes")
    yield from _groups(device, top, recorded=recorded)
    yield Heading("Free memory at the end", definition="fragmented-memory")
    yield _pool_table(device, top)


def _figures(device: DeviceMemory, *, recorded: bool) -> Iterator[Figure]:
    peak, free_bytes = device.peak, sum(pool.fragmented_bytes for pool in device.pools)
    if recorded:
        when = f"event {peak.event:,}" if peak.time_ns is None else format_duration(peak.time_ns)
        yield Figure("Peak allocated", format_bytes(peak.allocated_bytes), f"after {when}", "snapshot-peak")
        yield Figure("Reserved at the peak", format_bytes(peak.reserved_bytes), definition="reserved-memory")
    yield Figure("Allocated at the end", format_bytes(device.end.allocated_bytes), definition="allocated-memory")
    yield Figure("Reserved at the end", format_bytes(device.reserved_bytes), definition="reserved-memory")
    yield Figure("Free in used segments", format_bytes(free_bytes), definition="fragmented-memory")


def _uses(moment: Moment) -> Iterator[Part]:
    for row in moment.categories:
        text = f"{format_bytes(row.bytes)}, {format_share(row.bytes / moment.allocated_bytes)}"
        yield Part(MEMORY_LABELS[row.category], row.bytes, text, row.category, f"memory-{row.category}")


def _groups(device: DeviceMemory, top: int, *, recorded: bool) -> Iterator[Block]:
    """Yield the lines that held memory. On the console, a last row has the other lines together."""
    peak_bytes, end_bytes = device.peak.allocated_bytes, device.end.allocated_bytes
    failed = any(row.out_of_memory_bytes is not None for row in device.groups)
    groups = [row for row in device.groups if row.peak_bytes or top == EVERY_ROW]

    def cells(first: str, use: Cell, groups: Sequence[MemoryGroup], phase: str) -> TableRow:
        sizes = (
            (g.peak_bytes, g.peak_blocks, g.end_bytes, g.out_of_memory_bytes or 0, g.allocations, g.allocated_bytes)
            for g in groups
        )
        peak, blocks, end, error, made, made_bytes = map(sum, zip(*sizes, strict=True))
        at_peak = (_part_of(peak, peak_bytes), peak / max(1, peak_bytes)) if recorded else ()
        at_error = (error,) if failed else ()
        return (first, *at_peak, use, blocks, _part_of(end, end_bytes), *at_error, phase, made, made_bytes)

    rows = [cells(name_line(row.line, row.module), _colored(row.category), [row], row.phase) for row in groups[:top]]
    if len(groups) > top:
        rows.append(cells(counted(len(groups) - top, "other line"), Cell(""), groups[top:], ""))
    peak = ("at the peak", "share") if recorded else ()
    error = ("at the error",) if failed else ()
    more = ("phase", "allocations", "allocated in all")
    yield Heading("Who held the memory", definition="line-of-memory")
    if device.left_out_groups and top == EVERY_ROW:
        shown = len(device.groups)
        yield Line(f"The largest {shown:,} of {counted(shown + device.left_out_groups, 'line')}", "quiet")
    yield table(
        ("line", *peak, "for", "blocks", "at the end", *error, *more),
        rows,
        kinds=f"code{' bytes share' * recorded} text count bytes{' bytes' * failed} text count bytes",
        extra=(*error, *more),
    )


def _curve(device: DeviceMemory, curve: Curve, title: str, areas: Iterable[tuple[str, str, tuple[int, ...]]]) -> Plot:
    """Return the memory over time as areas of a label, a color and bytes, with the reserved memory as a line."""
    peak = device.peak
    unit, size = bytes_axis(max(*curve.reserved_bytes, peak.allocated_bytes))
    time, size_ns = ("events", 1.0) if curve.time_ns is None else time_axis(device.history.time_ns or 0)
    x = [value / size_ns for value in curve.time_ns or curve.event]

    def trace(label: str, color: str, sizes: Iterable[int], **look: Any) -> Trace:
        return line(
            x, [n / size for n in sizes], (), color, steps=True, name=label, units=(time, f"{unit} {label}"), **look
        )

    filled = [trace(name, color, sizes, stackgroup="held", fillcolor=f"--{color}") for name, color, sizes in areas]
    return Plot(
        f"{title}; the peak is {format_bytes(peak.allocated_bytes)}",
        (*filled, trace("reserved", "ink-soft", curve.reserved_bytes, look={"dash": "dot"})),
        {
            "showlegend": True,
            "xaxis": {"title": "events" if curve.time_ns is None else f"{time} since the first event"},
            "yaxis": {"title": unit, "rangemode": "tozero"},
            "annotations": [peak_mark((peak.time_ns or peak.event) / size_ns, peak.allocated_bytes / size)],
        },
        height=380,
    )


def _segments(device: DeviceMemory, *, named: bool) -> Iterator[Block]:
    """Yield the largest segments with their contents at the end."""
    left, shown = device.left_out_segments, len(device.segments)
    if not device.segments:
        return
    aside = f"the largest {shown} of {shown + left:,}" if left else ""
    yield Heading(f"Segments of device {device.device}" if named else "Segments", definition="segment", aside=aside)
    unit, size = bytes_axis(max(segment.reserved_bytes for segment in device.segments))
    runs: dict[str, list[tuple[float, float, int, str]]] = {}
    for row, segment in enumerate(device.segments):
        start = 0
        for run in segment.runs:
            label = f"{SEGMENT_LABELS[run.category]}: {format_bytes(run.bytes)}"
            runs.setdefault(run.category, []).append((run.bytes / size, start / size, row, label))
            start += run.bytes
    traces = []
    for category, parts in runs.items():
        lengths, starts, rows, labels = zip(*parts, strict=True)
        traces.append(bars(lengths, rows, labels, _segment_color(category), orientation="h", base=starts))
    names = [
        f"{format_bytes(each.reserved_bytes)}, {format_share(each.used_bytes / (each.reserved_bytes or 1))}"
        for each in device.segments
    ]
    yield Plot(
        "The contents of the largest segments. The table has their sizes.",
        tuple(traces),
        {
            "barmode": "overlay",
            "bargap": 0.15,
            "xaxis": {"title": f"{unit}, with the share in use"},
            "yaxis": names_axis(names),
        },
        height=70 + 16 * shown,
        legend=tuple((SEGMENT_LABELS[category], _segment_color(category)) for category in runs),
    )
    yield table(
        ("address", "size", "in use", "largest free block", "pool", "expandable"),
        (
            (
                f"0x{segment.address}",
                segment.reserved_bytes,
                _part_of(segment.used_bytes, segment.reserved_bytes),
                segment.largest_free_bytes,
                _pool_name(segment),
                "yes" if segment.is_expandable else "no",
            )
            for segment in device.segments
        ),
        kinds="code bytes bytes bytes text text",
        extra=("expandable",),
    )


def _segment_color(category: str) -> str:
    return {FREE: "line-strong", MIXED: "ink-soft"}.get(category, category)


def _error_sentence(error: OutOfMemory) -> str:
    text = (
        f"Out of memory: {name_line(error.line, error.module)} asked for {format_bytes(error.requested_bytes)}. "
        f"{format_bytes(error.allocated_bytes)} were allocated, {format_bytes(error.device_free_bytes)} were free on "
        f"the device, and {format_bytes(error.cached_bytes)} were free in the allocator. The largest usable piece had "
        f"{format_bytes(error.largest_free_bytes)}."
    )
    if error.fragmented:
        text += " In one piece they would have sufficed. Try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    return text


def _pool_table(device: DeviceMemory, top: int) -> Table:
    rows: list[TableRow] = []
    for pool in device.pools[:top]:
        free = pool.free_bytes, pool.largest_free_bytes, pool.fragmented_bytes, pool.releasable_bytes
        rows.append((_pool_name(pool), pool.segments, pool.reserved_bytes, *free))
    return table(
        ("segments", "count", "reserved", "free", "largest block", "in used segments", "releasable"),
        rows,
        kinds="name count" + " bytes" * 5,
        definitions={"in used segments": "fragmented-memory", "releasable": "releasable-memory"},
    )


def _pool_name(pool: Pool | SegmentMap) -> str:
    stream = f", stream {pool.stream:#x}" if pool.stream else ""
    return f"{pool.size}{stream}{f', pool {pool.pool}' if pool.pool != '0, 0' else ''}"


def _colored(category: str) -> Cell:
    return Cell(MEMORY_LABELS[category], color=category)


def _part_of(size_bytes: int, whole_bytes: int) -> Cell:
    return Cell(format_bytes(size_bytes), size_bytes, bar=size_bytes / max(1, whole_bytes))


def snapshot_diff_blocks(compared: MemoryDiff, top: int) -> Iterator[Block]:
    """Yield the blocks of the comparison of two snapshots, its tables cut to their first rows."""
    if not compared.devices:
        yield Line("The snapshots have no device in common.", "strong")
    for device in compared.devices:
        yield Line(_change_headline(device, named=len(compared.devices) > 1), "strong")
        totals = ((row.name, row.before_bytes, row.after_bytes) for row in device.totals)
        yield replace(_change_table("Totals", "moment", totals), definition="allocated-memory")
        uses = ((_colored(row.name), row.before_bytes, row.after_bytes) for row in device.categories)
        yield _change_table("Memory by use at the peak", "use", uses)
        yield _line_table(device, top)
    yield from map(note, compared.notes)


def _line_table(device: DeviceChange, top: int) -> Table:
    """Return the lines that changed most at the peak; on a page all lines, with their memory at the end."""
    lines = [row for row in device.lines if top == EVERY_ROW or row.before_peak_bytes != row.after_peak_bytes]
    rows: list[TableRow] = []
    for row in lines[:top]:
        peak, end = (row.before_peak_bytes, row.after_peak_bytes), (row.before_end_bytes, row.after_end_bytes)
        rows.append((name_line(row.line, row.module), _colored(row.category), *peak, _change(*peak), *end))
    heads = ("line", "for", "before", "after", "change", "end before", "end after")
    title = "Lines at the peak" if top == EVERY_ROW else "Lines that changed most at the peak"
    kinds = "code figure bytes bytes figure bytes bytes"
    return table(heads, rows, title, kinds, definition="line-of-memory", extra=heads[-2:])


def _change_headline(device: DeviceChange, *, named: bool) -> str:
    peak = device.totals[0]
    where = f"Device {device.device}: the" if named else "The"
    change = format_change(peak.after_bytes / peak.before_bytes) if peak.before_bytes else NOT_AVAILABLE
    return (
        f"{where} peak was {format_bytes(peak.before_bytes)} and is {format_bytes(peak.after_bytes)} allocated "
        f"({change})."
    )


def _change_table(title: str, head: str, rows: Iterable[tuple[str | Cell, int, int]]) -> Table:
    """Return a table of names, each with its bytes before and after, and their difference."""
    return table(
        (head, "before", "after", "change"),
        ((name, before, after, _change(before, after)) for name, before, after in rows),
        title,
        "name bytes bytes figure",
    )


def _change(before: int, after: int) -> Cell:
    sign = "±" if after == before else "+" if after > before else "−"
    return Cell(f"{sign}{format_bytes(abs(after - before))}", after - before)
