"""The work of one rank: operators, kernels, modules and memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from lightning_perf.analysis.kernels.arithmetic import REASONS
from lightning_perf.analysis.kernels.efficiency import HardwareCounters
from lightning_perf.analysis.kernels.kernel_table import GraphRegionTable, KernelRow, KernelTable
from lightning_perf.analysis.model.memory import AliveBlocks, DeviceMemory, PeakPart
from lightning_perf.analysis.model.modules import CallTree, ModuleTree
from lightning_perf.analysis.model.operators import OperatorRow, OperatorTable
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.savings import each
from lightning_perf.report.labels import CATEGORY_LABELS, MEMORY_LABELS, PHASE_LABELS, is_amd, matrix_units
from lightning_perf.report.sections.device import curve
from lightning_perf.report.sentences import batch_sentences
from lightning_perf.run_files.fit.out_of_memory import OutOfMemory
from lightning_perf.show.blocks import (
    CHOSEN,
    EVERY_ROW,
    WIDE,
    Bar,
    Block,
    Cell,
    Code,
    Field,
    Figure,
    Figures,
    Heading,
    Line,
    Part,
    Plot,
    Span,
    rest,
    table,
    tabulate,
)
from lightning_perf.show.kernel_text import kernel_text
from lightning_perf.show.plots import Trace, area, bytes_axis, line, peak, time_axis, upright
from lightning_perf.units import counted, format_bytes, format_count, format_duration, format_share

MOST_ROWS = 10_000
"""Rows of a long table on a page, of all ranks together. They bound the size of the page."""

FEWEST_ROWS = 20
"""Each rank has as many rows on a page, even if there are many ranks."""


def work_parts(analysis: RankAnalysis, top: int, most: int = MOST_ROWS) -> dict[str, Iterable[Block]]:
    """Return the tables of operators, device work, modules and, for a page, call paths, cut to their first rows.

    Args:
        most: Rows of a long table on a page.
    """
    parts: dict[str, Iterable[Block]] = {}
    if analysis.operators is not None and analysis.operators.rows:
        parts["operators"] = _operators(analysis, analysis.operators, top, most)
    if analysis.kernels is not None and analysis.kernels.rows:
        parts["kernels"] = _kernels(analysis, analysis.kernels, top, most)
    if analysis.modules is not None and analysis.modules.rows:
        parts["modules"] = _modules(analysis, analysis.modules, top)
    if top == EVERY_ROW and analysis.call_tree is not None and analysis.call_tree.rows:
        parts["call_tree"] = _call_tree(analysis.call_tree, each(analysis))
    return parts


def _rest(number: int, noun: str, top: int, most: int) -> Iterator[Block]:
    if top == EVERY_ROW:
        return rest(number - most, noun, ". lightning-perf analyze PATH --json prints all.")
    return rest(number - top, noun)


def regions_and_counters(analysis: RankAnalysis, top: int) -> Iterator[Block]:
    """Yield the named regions of CUDA graphs, and the samples of hardware counters."""
    if analysis.graph_regions is not None:
        yield Heading(f"Regions of CUDA graphs, {each(analysis)}")
        yield from _graph_regions(analysis.graph_regions, top)
    if analysis.counters is not None:
        yield Heading("Hardware counters")
        yield from _counters(analysis.counters)


def _operators(analysis: RankAnalysis, operators: OperatorTable, top: int, most: int) -> Iterator[Block]:
    steps, on_device, cores = max(operators.steps, 1), operators.device_ns is not None, matrix_units(analysis.metadata)
    shown = operators.rows[: min(top, most)]
    most_host, most_device = (max(times) / steps for times in zip(*map(_own_times, shown), strict=True))
    allocated, growth = _memory_by_operator(analysis)
    device = (
        Field("device self", "duration", "device_self_ns", "device-self-time", per=steps, most=most_device),
        Field("share", "share", "device_self_ns", per=operators.device_ns or math.nan),
    )
    totals = (
        Field("device total", "duration", "device_total_ns", "device-total-time", WIDE, steps),
        Field(f"on {cores}", "share", lambda row: _per(row.tensor_core_ns, row.device_self_ns), "tensor-cores", WIDE),
    )
    found = tabulate(
        shown,
        (
            Field("operator", "code", _operator_name),
            Field("calls", "count", "calls", per=steps),
            *(device if on_device else ()),
            Field("host self", "duration", "host_self_ns", "host-self-time", per=steps, most=most_host),
            Field("host total", "duration", "host_total_ns", "host-total-time", WIDE * on_device, steps),
            *(totals if on_device else ()),
            Field("input shapes", "code", _costliest_shapes, extra=1600),
            Field("allocates", "bytes", lambda row: allocated.get(row.name), "operator-memory", 1800),
            Field("memory growth", "bytes", lambda row: growth.get(row.name), "operator-memory", 1800),
            Field(f"why not on {cores}", "text", _reason, extra=1900),
        ),
    )
    details = tuple(_origins(row, steps) for row in shown)
    yield Heading(f"Operators, {each(analysis)}", definition="operator")
    yield replace(found, details=details if any(details) else (), lane="operators")
    yield from _rest(len(operators.rows), "operator", top, most)
    if top == EVERY_ROW and operators.unattributed_device_ns:
        time = format_duration(operators.unattributed_device_ns / steps)
        yield Line(f"No operator launched {time} of the device work.", "quiet")


def _own_times(row: OperatorRow) -> tuple[int, int]:
    return row.host_self_ns, row.device_self_ns or 0


def _operator_name(row: OperatorRow) -> Cell:
    return Cell(row.name, detail="" if row.input_shapes is None else f" {row.input_shapes}")


def _costliest_shapes(row: OperatorRow) -> str:
    return row.shapes[0].shapes.replace(",", ", ") if row.shapes else ""


def _reason(row: OperatorRow | KernelRow) -> str:
    return REASONS[row.tensor_core_reason] if row.tensor_core_reason else ""


def _memory_by_operator(analysis: RankAnalysis) -> tuple[Counter[str | None], Counter[str | None]]:
    """Return the bytes that each operator allocates, and by which the memory grows, over all devices."""
    allocated: Counter[str | None] = Counter()
    growth: Counter[str | None] = Counter()
    for device in analysis.memory.devices if analysis.memory is not None else ():
        for row in device.operators:
            allocated[row.operator] += row.allocated_bytes
            growth[row.operator] += row.growth_bytes
    return allocated, growth


def _origins(row: OperatorRow, steps: int) -> tuple[Block, ...]:
    """Return the input shapes and the Python stacks of an operator that cost most."""
    blocks: list[Block] = []
    if row.shapes:
        fields = (
            Field("input shapes", "code", "shapes"),
            Field("device self", "duration", "device_self_ns", per=steps),
            Field("host self", "duration", "host_self_ns", per=steps),
            Field("calls", "count", "calls", per=steps),
        )
        blocks.append(tabulate(row.shapes, fields, "Input shapes that cost most"))
    if row.stacks:
        blocks.append(Heading("Python stacks that cost most", 4))
    for stack in row.stacks:
        device = (
            "" if stack.device_self_ns is None else f", on the device {format_duration(stack.device_self_ns / steps)}"
        )
        calls, host = counted(stack.calls / steps, "call"), format_duration(stack.host_self_ns / steps)
        blocks += [Line(f"{calls}, {host} on the host{device}:"), Code(stack.frames, "")]
    return tuple(blocks)


def _per(value: int | None, number: int | None) -> float | None:
    return value / number if value is not None and number else None


def _whole_name(row: KernelRow) -> Cell:
    """Return the whole name of a kernel with its short form. Pages search the first, and show the second."""
    short = kernel_text(row.name)
    return Cell(row.name, color=_color(row), short=short if short != row.name else "")


def _kernels(analysis: RankAnalysis, kernels: KernelTable, top: int, most: int) -> Iterator[Block]:
    """Yield the device work. Pages have whole names."""
    steps, cores, amd = max(kernels.steps, 1), matrix_units(analysis.metadata), is_amd(analysis.metadata)
    sums: Counter[str] = Counter()
    for row in kernels.rows:
        sums[_color(row)] += row.total_ns
    parts = (Part(CATEGORY_LABELS[name], time, format_duration(time / steps), name) for name, time in sums.items())
    peak = any(row.peak_share for row in kernels.rows)
    longest, launch = kernels.rows[0].total_ns / steps, "launch-configuration"
    name = _whole_name if top == EVERY_ROW else lambda row: Cell(kernel_text(row.name), color=_color(row))
    found = tabulate(
        kernels.rows[: min(top, most)],
        (
            Field("kernel", "code", name),
            Field("calls", "count", "calls", per=steps),
            Field("time", "duration", "total_ns", per=steps, most=longest),
            Field("share", "share", "share"),
            Field("mean", "duration", "mean_ns"),
            Field("arithmetic", "figure", lambda row: row.arithmetic or "", "arithmetic"),
            Field("of peak", "share", "peak_share", "peak-share", 0 if peak else WIDE),
            Field("on MFMA" if amd else f"on {cores}", "text", _on_matrix_units, "tensor-cores", WIDE),
            Field("occupancy", "share", "occupancy", "occupancy", WIDE),
            Field("workgroups per CU" if amd else "blocks per SM", "count", "blocks_per_sm", "blocks-per-sm", WIDE),
            Field("grid", "text", lambda row: " × ".join(map(str, row.grid or ())), launch, 1700),
            Field("block", "text", lambda row: " × ".join(map(str, row.block or ())), launch, 1700),
            Field("registers", "count", "registers", launch, 1900),
            Field("shared memory", "bytes", "shared_bytes", launch, 1900),
            Field("launched by", "code", _launchers, extra=2000),
            Field("minimum", "duration", "min_ns", extra=2400),
            Field("maximum", "duration", "max_ns", extra=2400),
            Field("bytes", "bytes", "bytes", extra=2400),
            Field("category", "text", lambda row: CATEGORY_LABELS[row.category], extra=2400),
            Field("configurations", "count", lambda row: row.configurations or None, launch, CHOSEN),
            Field(f"why not on {cores}", "text", _reason, extra=CHOSEN),
        ),
    )
    yield Heading(f"Device work, {each(analysis)}", definition="kernel")
    yield Bar("Device work by category", tuple(parts))
    yield replace(found, lane="kernels")
    yield from _rest(len(kernels.rows), "kernel", top, most)


def _launchers(row: KernelRow) -> str:
    return ", ".join(launcher.operator or "(no operator)" for launcher in row.launchers)


def _color(row: KernelRow) -> str:
    return "memcpy" if row.category.startswith("memcpy") else row.category


def _on_matrix_units(row: KernelRow) -> str:
    """Return whether a kernel runs on matrix units; empty for work that multiplies no matrices."""
    if row.category != "device_compute":
        return ""
    if row.tensor_cores:
        return "yes"
    return "not used" if row.tensor_core_reason else "" if row.tensor_cores is False else "unknown"


def _modules(analysis: RankAnalysis, modules: ModuleTree, top: int) -> Iterator[Block]:
    """Yield the top of the tree. The time of a module includes that of the modules below it."""
    steps, on_device, shown = max(modules.steps, 1), modules.device_ns is not None, modules.rows[:top]

    def times(where: str, before: str, extra: int) -> Iterator[Field]:
        total = f"{where}_total_ns"
        longest = max(getattr(row, total) or 0 for row in shown) / steps
        yield Field(f"{before}forward", "duration", total, "module", extra, steps, longest)
        yield Field(f"{before}backward", "duration", f"backward_{where}_ns", "module-backward", extra, steps)
        yield Field(f"{before}own", "duration", f"{where}_self_ns", "module", WIDE, steps)

    device = (*times("device", "device ", 0), *times("host", "host ", WIDE))
    found = tabulate(
        shown,
        (
            Field("module", "code", lambda row: f"{'  ' * row.depth}{row.name}"),
            Field("calls", "count", "calls", per=steps),
            *(device if on_device else times("host", "", 0)),
        ),
    )
    yield Heading(f"Modules, {each(analysis)}", definition="module")
    yield replace(found, parents=tuple(row.parent for row in shown), lane="modules")
    yield from rest(len(modules.rows) - top, "module")
    if top == EVERY_ROW:
        source = "Python functions" if modules.source == "python" else "annotations"
        apart = format_duration((modules.unattributed_device_ns or 0) / steps)
        others = f" {apart} of the device work belongs to no module." if modules.unattributed_device_ns else ""
        yield Line(f"The modules are those of the {source} in the recording.{others}", "quiet")


def _call_tree(tree: CallTree, of_what: str) -> Iterator[Block]:
    steps, roots = max(tree.steps, 1), [row for row in tree.rows if row.parent is None]

    def times(where: str) -> Iterator[Field]:
        total, own = f"{where}_total_ns", f"{where}_self_ns"
        if longest := max((getattr(row, total) or 0) / steps for row in roots):
            yield Field(f"{where} total", "duration", total, f"{where}-total-time", per=steps, most=longest)
            yield Field(f"{where} self", "duration", own, f"{where}-self-time", per=steps)

    calls = Field("calls", "count", "calls", per=steps)
    found = tabulate(tree.rows, (Field("operator", "code", "name"), *times("device"), *times("host"), calls))
    left_out = f"{counted(tree.left_out, 'cheaper call path')} left out" if tree.left_out else of_what
    yield Heading("Call tree", definition="call-tree", aside=left_out)
    yield replace(found, parents=tuple(row.parent for row in tree.rows))


def _graph_regions(regions: GraphRegionTable, top: int) -> Iterator[Block]:
    steps = max(regions.steps, 1)
    yield tabulate(
        regions.rows[:top],
        (
            Field("region", "name", "name"),
            Field("calls", "count", "calls", per=steps),
            Field("device", "duration", "device_ns", per=steps),
            Field("share", "share", "device_ns", per=regions.device_ns or math.nan),
            Field("of it backward", "duration", "backward_ns", per=steps),
        ),
    )
    yield from rest(len(regions.rows) - top, "")
    yield Line(f"Outside of named regions: {format_duration(regions.unattributed_device_ns / steps)}.", "quiet")


def _counters(counters: HardwareCounters) -> Iterator[Block]:
    rows = (
        (row.name, str(row.device), row.mean, f"{format_count(row.minimum)}–{format_count(row.maximum)}", row.samples)
        for row in counters.rows
    )
    heads = ("counter", "device", "mean", "minimum–maximum", "samples")
    yield table(heads, rows, kinds="name figure count figure count", extra=("samples",))
    if counters.step_energy_j is not None:
        yield Line(f"Energy: {format_count(counters.step_energy_j)} J per step.")


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


def out_of_memory_summary(failures: Sequence[OutOfMemory]) -> Iterator[Line]:
    """Yield the first failure and its fix in a line: no saving of time matters as much."""
    for failure in failures[:1]:
        fix = (Span(f" Fix: {failure.fixes[0]}", "good"),) if failure.fixes else ()
        yield Line((failure.sentence, *fix), label="Error", label_style="bad")


def other_notes(notes: Sequence[str], failures: Sequence[OutOfMemory]) -> list[str]:
    """Return the notes that `out_of_memory_summary` does not say."""
    said = {failure.sentence for failure in failures[:1]}
    return [text for text in notes if text not in said]


def out_of_memory_blocks(failures: Sequence[OutOfMemory]) -> Iterator[Block]:
    """Yield the state of each rank that ran out of memory, and the fixes."""
    yield Heading("Out of memory", definition="out-of-memory")
    for failure in failures:
        yield Line(failure.sentence)
        yield Line(", ".join(f"{name} {format_bytes(size)}" for name, size in failure.sizes))
        if failure.largest:
            yield Line(failure.largest)
        yield from (Line(fix, label="Or " if number else "Fix") for number, fix in enumerate(failure.fixes))
        if failure.snapshot is not None:
            yield Line(f"Snapshot of the allocator, for lightning-perf analyze: {failure.snapshot}")
        yield Line(failure.message, "quiet")
