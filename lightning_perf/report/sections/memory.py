"""The memory of each device in a recording, and of ranks that ran out of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lightning_perf.analysis.model.memory import AliveBlocks, DeviceMemory, PeakPart
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.report.labels import MEMORY_LABELS, PHASE_LABELS
from lightning_perf.report.sections.device import curve
from lightning_perf.report.sentences import batch_sentences
from lightning_perf.run_files.fit.out_of_memory import OutOfMemory
from lightning_perf.show.blocks import Bar, Block, Cell, Field, Figure, Figures, Heading, Line, Part, Plot, tabulate
from lightning_perf.show.plots import Trace, area, bytes_axis, line, peak, time_axis, upright
from lightning_perf.units import format_bytes, format_share

PEAK_COLORS = {"optimizer state": "optimizer_state", "temporary": "temporaries", "other": "before_recording"}


def memory_section(device: DeviceMemory, rank: RankAnalysis, top: int) -> Iterator[Block]:
    """Yield the memory of one device over the recording, and who held it at the peak."""
    name = "host" if device.device is None else f"device {device.device}"
    yield Heading(f"Memory, {name}", definition="memory")
    notes = [*([] if device.absolute else ["at least"])]
    notes += [] if device.peak_step is None or not rank.breakdown.marked else [f"step {device.peak_step}"]
    before = device.before_recording_bytes
    yield Figures(
        (
            Figure("Peak in tensors", format_bytes(device.peak_allocated_bytes), ", ".join(notes), "peak-memory"),
            Figure("Peak reserved", format_bytes(device.peak_reserved_bytes), definition="reserved-memory"),
            Figure("Device memory", format_bytes(device.total_bytes)),
            Figure("Headroom", format_bytes(device.headroom_bytes), definition="headroom"),
            Figure("Since before recording", format_bytes(before), definition="before-recording"),
        )
    )
    if not device.absolute:
        less = ", except for parameters, gradients and optimizer state" if device.listed else ""
        yield Line(f"These figures do not include memory that was allocated before the recording{less}.", "quiet")
    if device.allocated.time_ns:
        yield _curve(device, rank, name)
    sentences = batch_sentences(device)
    if sentences:
        yield Heading("Other batch sizes", 4, "memory-of-a-batch")
        yield from map(Line, sentences)
    if device.alive:
        whole = sum(part.bytes for part in device.parts)
        yield Heading("Memory at the peak", 4)
        yield Bar(f"Memory at the peak, {name}", tuple(_part(part, whole) for part in device.parts), alone=True)
        yield tabulate(
            device.alive[:top],
            (
                Field("held by", "code", lambda row: _holder(row, listed=device.listed)),
                Field("for", "text", lambda row: Cell(MEMORY_LABELS[row.category], color=row.category)),
                Field("phase", "text", lambda row: PHASE_LABELS[row.phase] if row.phase is not None else ""),
                Field("blocks", "count", "blocks"),
                Field("size", "bytes", "bytes", most=device.peak_allocated_bytes),
            ),
        )


def _holder(row: AliveBlocks, *, listed: bool) -> Cell:
    unknown = "(no operator)" if row.phase or not listed else "(before the recording)"
    return Cell(row.operator or unknown, detail=f" in {row.module}" if row.module else "")


def memory_tables(device: DeviceMemory) -> Iterator[Block]:
    """Yield the activations of each module, and the events of the allocator by operator, for the page."""
    if device.alive and device.activations:
        yield Heading("Activations at the peak by module", 4, "activations-by-module")
        size = Field("size", "bytes", "bytes", most=device.activations[0].bytes)
        counts = (Field(name, "count", name) for name in ("depth", "blocks"))
        yield tabulate(device.activations, (Field("module", "code", "name"), *counts, size))
    if device.operators:
        yield Heading("Allocator events by operator", 4, "operator-memory")
        yield tabulate(
            device.operators,
            (
                Field("operator", "code", lambda row: row.operator or "(no operator)"),
                Field("allocated", "bytes", "allocated_bytes", most=device.operators[0].allocated_bytes),
                Field("growth", "bytes", "growth_bytes"),
                *(Field(name, "count", name) for name in ("allocations", "frees")),
            ),
        )


def _part(part: PeakPart, whole_bytes: int) -> Part:
    color = PEAK_COLORS.get(part.category, part.category)
    text = f"{format_bytes(part.bytes)} {format_share(part.bytes / whole_bytes)}"
    return Part(part.category, part.bytes, text, color, f"peak-{part.category.replace(' ', '-')}")


def _curve(device: DeviceMemory, rank: RankAnalysis, name: str) -> Plot:
    time, size_ns = time_axis(rank.recording_ns)
    unit, size = bytes_axis(max(device.peak_allocated_bytes, device.peak_reserved_bytes or 0))
    inside, units = curve(device.allocated, size_ns, size), (time, f"{unit} in tensors")
    traces: list[Trace] = [area(*inside, "accent", name="in tensors", units=units)]
    if device.reserved is not None:
        look: Trace = {"look": {"dash": "dot"}, "name": "reserved", "units": (time, f"{unit} reserved")}
        traces.append(line(*curve(device.reserved, size_ns, size), (), "ink-soft", steps=True, **look))
    steps = rank.breakdown.steps if rank.breakdown.marked else ()
    return Plot(
        f"Bytes in tensors over the recording, {name}; the peak is {format_bytes(device.peak_allocated_bytes)}",
        tuple(traces),
        {
            "showlegend": device.reserved is not None,
            "xaxis": {"title": f"{time} since the start of the recording"},
            "yaxis": {"title": unit, "rangemode": "tozero"},
            "shapes": [upright(step.start_ns / size_ns, "line-strong", dash="dot") for step in steps],
            "annotations": [peak(device.peak_ns / size_ns, device.peak_allocated_bytes / size)],
        },
    )


def out_of_memory_blocks(failures: Sequence[OutOfMemory]) -> Iterator[Block]:
    """Yield the state of each rank that ran out of memory, and the fixes."""
    yield Heading("Out of memory", definition="out-of-memory")
    for failure in failures:
        yield Line(failure.sentence)
        yield Line(", ".join(f"{name} {format_bytes(size)}" for name, size in failure.sizes))
        yield from (Line(fix, label="Or " if number else "Fix") for number, fix in enumerate(failure.fixes))
        if failure.snapshot is not None:
            yield Line(f"Snapshot of the allocator, for lightning-perf analyze: {failure.snapshot}")
        yield Line(failure.message, "quiet")
