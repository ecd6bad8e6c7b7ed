"""The parts of one rank on a report's page that show the use of the device: launches, idle time, ranks, memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from lightning_perf.analysis.core.arrays import Series
from lightning_perf.analysis.host.launches import Launches, QueueDepth
from lightning_perf.analysis.model.memory import DeviceMemory, PeakPart
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.ranks.communication import Communication
from lightning_perf.analysis.steps.idle import Idle
from lightning_perf.findings.savings import each
from lightning_perf.report.labels import MEMORY_LABELS, PHASE_LABELS, count_of
from lightning_perf.report.sections.device import collective_table, idle_labels, idle_table
from lightning_perf.report.sentences import batch_sentences
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
    table,
)
from lightning_perf.show.plots import Trace, area, bytes_axis, line, peak, time_axis, upright
from lightning_perf.units import format_bytes, format_count, format_duration, format_share

PEAK_COLORS = {"optimizer state": "optimizer_state", "temporary": "temporaries", "other": "before_recording"}


def device_parts(rank: RankAnalysis) -> dict[str, Iterable[Block]]:
    """Return the blocks of each part on the use of the device."""
    of_what = each(rank)
    parts: dict[str, Iterable[Block]] = {}
    if rank.launches is not None and rank.launches.calls:
        parts["launches"] = _launches(rank.launches, of_what)
    elif rank.breakdown.has_device:
        parts["launches"] = [Line("This recording has no launch calls.", "quiet")]
    if rank.idle is not None and rank.idle.idle_ns:
        labels = idle_labels(operators=rank.operators is not None)
        parts["idle"] = _idle(rank.idle, of_what, labels)
        parts["gaps"] = [Heading("Longest gaps"), _gap_table(rank.idle, labels)] if rank.idle.longest else []
    if rank.communication is not None:
        parts["communication"] = _communication(rank, rank.communication, of_what)
    elif (rank.metadata.world_size or 1) > 1:
        parts["communication"] = [Line("No collective ran on this rank.", "quiet")]
    if rank.memory is not None:
        parts["memory"] = (block for device in rank.memory.devices for block in _memory(device, rank))
    return parts


def _launches(found: Launches, of_what: str) -> Iterator[Block]:
    steps = max(found.steps, 1)
    delay, queue, graphs, bound = found.delay, found.queue, found.graphs, found.launch_bound
    yield Heading("Launches", definition="launch-call", aside=of_what)
    if bound is not None:
        text = f"aunch-bound: the device waits {format_share(bound.share)} of the time for the host to issue work."
        yield Line(f"L{text}", "bad") if bound.bound else Line(f"Not l{text}", "good")
    ends = f"p90 {format_duration(delay.p90_ns)}, p99 {format_duration(delay.p99_ns)}" if delay else ""
    exposed = f"{format_duration(found.exposed_ns / steps)} exposed"
    short = f"of {format_count(found.kernels / steps)}, {format_duration(found.short_kernel_ns / steps)}"
    figures = [
        Figure("Launch calls", format_count(found.calls / steps), definition="launch-call"),
        Figure("Time in launch calls", format_duration(found.call_ns / steps), exposed, "launch-time"),
        Figure("Launch to start", format_duration(delay.p50_ns if delay else None), ends, "launch-delay"),
        Figure("Short kernels", format_count(found.short_kernels / steps), short, "short-kernels"),
        Figure("Outrun kernels", format_count(found.outrun_kernels / steps), definition="outrun-kernels"),
    ]
    if queue is not None:
        deepest = f"at most {format_count(queue.max)}"
        figures.insert(3, Figure("Queue depth", format_count(queue.mean), deepest, "queue-depth"))
        figures.insert(4, Figure("Queue empty", format_share(queue.empty_share), "of the time", "queue-depth"))
    if graphs is not None:
        kernels = f"{format_count(graphs.kernels_per_graph)} kernels each"
        figures.append(Figure("Graph launches", format_count(graphs.calls / steps), kernels, "graph-launch"))
    yield Figures(tuple(figures))
    if bound is not None and bound.waiting_ns:
        yield Heading("Time that the device waits for the host to issue work", 4)
        times = (
            ("in launch calls", bound.launch_ns, "kernel_launch"),
            ("in operators", bound.operator_ns, "host_compute"),
            ("in Python in between", bound.python_ns, "host_other"),
        )
        yield _times("Waiting for the host", times, steps)
    if queue is not None and queue.series.time_ns:
        yield Heading("Queue depth over time", 4)
        yield _queue(queue)
    if queue is not None and len(queue.streams) > 1:
        yield table(
            ("stream", "items", "mean depth", "greatest", "empty"),
            (
                (
                    f"device {row.device}, stream {row.stream}",
                    row.items / steps,
                    row.mean,
                    row.max,
                    row.empty_share,
                )
                for row in queue.streams
            ),
            kinds="name count count count share",
        )


def _times(title: str, parts: Iterable[tuple[str, float, str]], steps: int) -> Bar:
    """Return a bar of times, which are sums over some steps."""
    shown = (
        Part(label, time_ns, format_duration(time_ns / steps), color) for label, time_ns, color in parts if time_ns
    )
    return Bar(title, tuple(shown))


def _queue(queue: QueueDepth) -> Plot:
    unit, size_ns = time_axis(queue.series.time_ns[-1])
    places = _curve(queue.series, size_ns, 1)
    return Plot(
        f"Queue depth over the recording, on average {format_count(queue.mean)}",
        (area(*places, "accent", units=(unit, "queued")),),
        {
            "xaxis": {"title": f"{unit} since the start of the recording"},
            "yaxis": {"title": "queued", "rangemode": "tozero"},
        },
        height=220,
    )


def _curve(series: Series, size_ns: float, size: float) -> tuple[list[float], list[float]]:
    return [round(time / size_ns, 6) for time in series.time_ns], [round(value / size, 6) for value in series.value]


def _idle(idle: Idle, of_what: str, labels: Mapping[str, str]) -> Iterator[Block]:
    steps = max(idle.steps, 1)
    facts = f"{format_duration(idle.idle_ns / steps)} {of_what}, {format_share(idle.share)}, "
    facts += f"in {format_count(idle.gaps / steps)} gaps; the median gap is {format_duration(idle.median_gap_ns)}"
    yield Heading("Device idle", definition="device-idle", aside=facts)
    times = ((labels[row.name], row.total_ns, row.name) for row in idle.classes)
    yield _times("Host activity while the device was idle", times, steps)
    yield idle_table(idle, labels)


def _gap_table(idle: Idle, labels: Mapping[str, str]) -> Table:
    rows = []
    for gap in idle.longest:
        start, length = gap.start_ns, gap.length_ns
        # Three times its length is in view.
        place = f"#view=timeline&time.from={start - length}&time.to={start + 2 * length}&time.at={start + length // 2}"
        cause, where = Cell(labels[gap.cause], color=gap.cause), gap.python or gap.operator or gap.annotation or ""
        rows.append((gap.step, Cell(format_duration(start), start, link=place), length, cause, where, gap.after or ""))
    kinds = "count duration duration text code code"
    return table(("step", "at", "length", "while", "in", "ended by"), rows, kinds=kinds)


def _communication(rank: RankAnalysis, found: Communication, of_what: str) -> Iterator[Block]:
    steps = max(rank.breakdown.averaged_steps, 1)
    several = (rank.metadata.world_size or 1) > 1 and rank.rank is not None
    title = f"Communication of rank {rank.rank}" if several else "Communication"
    yield Heading(title, definition="communication-time", aside=of_what)
    if found.steps:
        share = "" if found.exposed_share is None else f"{format_share(found.exposed_share)} of the step"
        whole, hidden, exposed = (
            format_duration(time_ns / steps)
            for time_ns in (found.communication_ns, found.overlapped_ns, found.exposed_ns)
        )
        yield Figures(
            (
                Figure("In collectives", whole, definition="communication-time"),
                Figure("Overlapped", hidden, definition="communication-time"),
                Figure("Exposed", exposed, share, "communication"),
            )
        )
        parts = (("overlapped", found.overlapped_ns, "overlapped"), ("exposed", found.exposed_ns, "communication"))
        yield _times("Communication", parts, steps)
        yield from _sent(found)
    if found.collectives:
        yield collective_table(found, steps, EVERY_ROW)
        return
    rows = ((row.name, row.calls / steps, row.total_ns / steps) for row in found.host_collectives)
    yield table(("collective on the host", "calls", "time"), rows, kinds="code count duration")


def _sent(found: Communication) -> Iterator[Line]:
    """Yield the data that each collective sends, with all its sizes together; nothing if no size is recorded."""
    sums: dict[str, tuple[int, int]] = {}
    for row in found.collectives:
        if row.bytes is not None:
            size, calls = sums.get(row.name, (0, 0))
            sums[row.name] = size + row.bytes * row.calls, calls + row.calls
    texts = [
        f"{name} {format_bytes(size)} ({size:,} bytes) in {count_of(calls, 'call')}"
        for name, (size, calls) in sums.items()
    ]
    if texts:
        yield Line(f"Sent in all averaged steps: {', '.join(texts)}.", "quiet")


def _memory(device: DeviceMemory, rank: RankAnalysis) -> Iterator[Block]:
    name = "Host" if device.device is None else f"Device {device.device}"
    less = ", except for parameters, gradients and optimizer state" if device.listed else ""
    only = f"These figures do not include memory that was allocated before the recording{less}."
    yield Heading(name, definition="memory", aside="" if device.absolute else only)
    notes = [*([] if device.absolute else ["at least"])]
    notes += [] if device.peak_step is None else [f"step {device.peak_step}"]
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
    if device.allocated.time_ns:
        yield _memory_curve(device, rank, name)
    sentences = batch_sentences(device)
    if sentences:
        yield Heading("Other batch sizes", 4, "memory-of-a-batch")
        yield from map(Line, sentences)
    if device.alive:
        yield Heading("Memory at the peak", 4)
        yield Bar(f"{name}: memory at the peak", tuple(map(_peak_part, device.parts)))
        yield _alive_table(device)
    if device.alive and device.activations:
        yield Heading("Activations at the peak by module", 4, "activations-by-module")
        most = device.activations[0].bytes
        rows = ((row.name, row.depth, row.blocks, _barred(row.bytes, most)) for row in device.activations)
        yield table(("module", "depth", "blocks", "size"), rows, kinds="code count count bytes")
    if device.operators:
        yield Heading("Allocator events by operator", 4, "operator-memory")
        most = device.operators[0].allocated_bytes
        yield table(
            ("operator", "allocated", "growth", "allocations", "frees"),
            (
                (
                    row.operator or "(no operator)",
                    _barred(row.allocated_bytes, most),
                    row.growth_bytes,
                    row.allocations,
                    row.frees,
                )
                for row in device.operators
            ),
            kinds="code bytes bytes count count",
        )


def _barred(size_bytes: int, most_bytes: int) -> Cell:
    return Cell(format_bytes(size_bytes), size_bytes, bar=size_bytes / (most_bytes or 1))


def _memory_curve(device: DeviceMemory, rank: RankAnalysis, name: str) -> Plot:
    time, size_ns = time_axis(rank.recording_ns)
    unit, size = bytes_axis(max(device.peak_allocated_bytes, device.peak_reserved_bytes or 0))
    inside, units = _curve(device.allocated, size_ns, size), (time, f"{unit} in tensors")
    traces: list[Trace] = [area(*inside, "accent", name="in tensors", units=units)]
    if device.reserved is not None:
        look: Trace = {"look": {"dash": "dot"}, "name": "reserved", "units": (time, f"{unit} reserved")}
        traces.append(line(*_curve(device.reserved, size_ns, size), (), "ink-soft", steps=True, **look))
    steps = rank.breakdown.steps if rank.breakdown.marked else ()
    return Plot(
        f"{name}: bytes in tensors over the recording; the peak is {format_bytes(device.peak_allocated_bytes)}",
        tuple(traces),
        {
            "showlegend": device.reserved is not None,
            "xaxis": {"title": f"{time} since the start of the recording"},
            "yaxis": {"title": unit, "rangemode": "tozero"},
            "shapes": [upright(step.start_ns / size_ns, "line-strong", dash="dot") for step in steps],
            "annotations": [peak(device.peak_ns / size_ns, device.peak_allocated_bytes / size)],
        },
    )


def _peak_part(part: PeakPart) -> Part:
    color = PEAK_COLORS.get(part.category, part.category)
    definition = f"peak-{part.category.replace(' ', '-')}"
    return Part(part.category, part.bytes, format_bytes(part.bytes), color, definition)


def _alive_table(device: DeviceMemory) -> Table:
    unknown = "(no operator)"
    rows = (
        (
            row.operator or (unknown if row.phase or not device.listed else "(before the recording)"),
            row.module or "",
            PHASE_LABELS[row.phase] if row.phase else "",
            Cell(MEMORY_LABELS[row.category], color=row.category),
            row.blocks,
            _barred(row.bytes, device.peak_allocated_bytes),
        )
        for row in device.alive or ()
    )
    heads = ("allocated in", "module", "phase", "for", "blocks", "size")
    return table(heads, rows, kinds="code code text text count bytes", extra=("module", "phase"))
