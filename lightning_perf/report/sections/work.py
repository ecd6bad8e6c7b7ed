"""The work of one rank: operators, kernels, modules, regions of CUDA graphs and hardware counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from lightning_perf.analysis.kernels.efficiency import HardwareCounters
from lightning_perf.analysis.kernels.kernel_table import GraphRegionTable, KernelRow, KernelTable
from lightning_perf.analysis.kernels.tensor_core_eligibility import REASONS
from lightning_perf.analysis.model.call_tree import CallTree
from lightning_perf.analysis.model.modules import ModuleTree
from lightning_perf.analysis.model.operators import OperatorRow, OperatorTable
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.savings import counted, each
from lightning_perf.report.labels import CATEGORY_LABELS, count_of, is_amd, matrix_units
from lightning_perf.show.blocks import (
    CHOSEN,
    EVERY_ROW,
    WIDE,
    Bar,
    Block,
    Cell,
    Code,
    Heading,
    Line,
    Part,
    TableRow,
    rest,
    table,
)
from lightning_perf.show.terminal_text import kernel_text
from lightning_perf.units import format_count, format_duration

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
    yield Heading(f"Operators, {each(analysis)}", definition="operator")
    steps, on_device, cores = max(operators.steps, 1), operators.device_ns is not None, matrix_units(analysis.metadata)
    shown = operators.rows[: min(top, most)]
    most_host_ns, most_device_ns = (
        max(row.host_self_ns for row in shown),
        max(row.device_self_ns or 0 for row in shown),
    )
    allocated, growth = _memory_by_operator(analysis)

    def cells(row: OperatorRow) -> TableRow:
        shapes = row.input_shapes or (row.shapes[0].shapes if row.shapes else "")
        detail = "" if row.input_shapes is None else f" {row.input_shapes}"
        first = Cell(row.name, detail=detail), row.calls / steps
        host = _barred(row.host_self_ns / steps, most_host_ns / steps)
        times: TableRow = (host, row.host_total_ns / steps)
        if on_device:
            device_ns, total_ns, cores_ns = row.device_self_ns, row.device_total_ns, row.tensor_core_ns
            own = _barred(_per(device_ns, steps), most_device_ns / steps)
            times = (
                own,
                _per(device_ns, operators.device_ns),
                *times,
                _per(total_ns, steps),
                _per(cores_ns, device_ns),
            )
        reason = REASONS[row.tensor_core_reason] if row.tensor_core_reason else ""
        memory = (allocated[row.name], growth[row.name]) if row.name in allocated else (None, None)
        return (*first, *times, "" if detail else shapes.replace(",", ", "), *memory, reason)

    device = ("device self", "share") if on_device else ()
    totals = ("device total", f"on {cores}") if on_device else ()
    widths = dict.fromkeys(totals, WIDE) | {"input shapes": 1600, "allocates": 1800, "memory growth": 1800}
    yield table(
        ("operator", "calls", *device, "host self", "host total", *totals, "input shapes", "allocates", "memory growth",
         f"why not on {cores}"),
        map(cells, shown),
        kinds=f"code count{' duration share' * on_device} duration duration{' duration share' * on_device} code"
        " bytes bytes text",
        definitions={
            "device self": "device-self-time",
            "device total": "device-total-time",
            "host self": "host-self-time",
            "host total": "host-total-time",
            f"on {cores}": "tensor-cores",
            "allocates": "operator-memory",
            "memory growth": "operator-memory",
        },
        extra=widths | {f"why not on {cores}": 1900} | ({"host total": WIDE} if on_device else {}),
        details=tuple(_origins(row, steps) for row in shown),
        lane="operators",
    )  # fmt: skip
    yield from _rest(len(operators.rows), "operator", top, most)
    if top == EVERY_ROW and operators.unattributed_device_ns:
        time = format_duration(operators.unattributed_device_ns / steps)
        yield Line(f"No operator launched {time} of the device work.", "quiet")


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
        times = ((s.shapes, s.device_self_ns, s.host_self_ns, s.calls) for s in row.shapes)
        rows = ((name, *(_per(value, steps) for value in values)) for name, *values in times)
        blocks.append(
            table(
                ("input shapes", "device self", "host self", "calls"),
                rows,
                "Input shapes that cost most",
                "code duration duration count",
            )
        )
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


def _barred(time_ns: float | None, most_ns: float | None) -> Cell:
    return Cell(format_duration(time_ns), time_ns, bar=(time_ns or 0.0) / (most_ns or 1.0))


def _kernels(analysis: RankAnalysis, kernels: KernelTable, top: int, most: int) -> Iterator[Block]:
    """Yield the device work. Pages have whole names."""
    steps, cores, amd = max(kernels.steps, 1), matrix_units(analysis.metadata), is_amd(analysis.metadata)
    yield Heading(f"Device work, {each(analysis)}", definition="kernel")

    def cells(row: KernelRow) -> TableRow:
        return (
            Cell(row.name if top == EVERY_ROW else kernel_text(row.name), color=_color(row)),
            row.calls / steps,
            _barred(row.total_ns / steps, kernels.rows[0].total_ns / steps),
            row.share,
            row.mean_ns,
            row.arithmetic or "",
            row.peak_share,
            _on_matrix_units(row),
            row.occupancy,
            row.blocks_per_sm,
            ", ".join(launcher.operator or "(no operator)" for launcher in row.launchers),
            "" if row.grid is None else " × ".join(map(str, row.grid)),
            "" if row.block is None else " × ".join(map(str, row.block)),
            row.registers,
            row.shared_bytes,
            row.configurations or None,
            row.min_ns,
            row.max_ns,
            row.bytes,
            CATEGORY_LABELS[row.category],
            REASONS[row.tensor_core_reason] if row.tensor_core_reason else "",
        )

    sums: Counter[str] = Counter()
    for row in kernels.rows:
        sums[_color(row)] += row.total_ns
    parts = (Part(CATEGORY_LABELS[name], time, format_duration(time / steps), name) for name, time in sums.items())
    yield Bar("Device work by category", tuple(parts))
    launch = ("grid", "block", "registers", "shared memory", "configurations")
    blocks = "workgroups per CU" if amd else "blocks per SM"
    peak = any(row.peak_share for row in kernels.rows)
    units = "on MFMA" if amd else f"on {cores}"
    yield table(
        ("kernel", "calls", "time", "share", "mean", "arithmetic", "of peak", units, "occupancy", blocks,
         "launched by", *launch, "minimum", "maximum", "bytes", "category", f"why not on {cores}"),
        map(cells, kernels.rows[: min(top, most)]),
        kinds="code count duration share duration figure share text share count"
        " code text text count bytes count duration duration bytes text text",
        definitions={
            "arithmetic": "arithmetic",
            "of peak": "peak-share",
            units: "tensor-cores",
            "occupancy": "occupancy",
            blocks: "blocks-per-sm",
            **dict.fromkeys(launch, "launch-configuration"),
        },
        extra=dict.fromkeys((units, "occupancy", blocks), WIDE)
        | {"grid": 1700, "block": 1700, "registers": 1900, "shared memory": 1900, "launched by": 2000}
        | dict.fromkeys(("minimum", "maximum", "bytes", "category"), 2400)
        | dict.fromkeys(("configurations", f"why not on {cores}"), CHOSEN)
        | ({} if peak else {"of peak": WIDE}),
        lane="kernels",
    )  # fmt: skip
    yield from _rest(len(kernels.rows), "kernel", top, most)


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
    yield Heading(f"Modules, {each(analysis)}", definition="module")
    steps, on_device = max(modules.steps, 1), modules.device_ns is not None
    host, device = ("host forward", "host backward"), ("device forward", "device backward")
    heads = (*device, "device own", *host, "host own") if on_device else ("forward", "backward", "own")
    rows: list[TableRow] = []
    for row in modules.rows[:top]:
        times: list[int | None] = [row.host_total_ns, row.backward_host_ns, row.host_self_ns]
        if on_device:
            times = [row.device_total_ns, row.backward_device_ns, row.device_self_ns, *times]
        figures = (_per(time, steps) for time in times)
        rows.append((f"{'  ' * row.depth}{row.name}", row.calls / steps, *figures))
    yield table(
        ("module", "calls", *heads),
        rows,
        kinds="code count" + " duration" * len(heads),
        definitions={name: "module-backward" if name.endswith("backward") else "module" for name in heads},
        extra=[name for name in heads if name.endswith("own") or name in host],
        parents=tuple(row.parent for row in modules.rows[:top]),
        lane="modules",
    )
    yield from rest(len(modules.rows) - top, "module")
    if top == EVERY_ROW:
        source = "Python functions" if modules.source == "python" else "annotations"
        apart = format_duration((modules.unattributed_device_ns or 0) / steps)
        rest_of_device = f" {apart} of the device work belongs to no module." if modules.unattributed_device_ns else ""
        yield Line(f"The modules are those of the {source} in the recording.{rest_of_device}", "quiet")


def _call_tree(tree: CallTree, of_what: str) -> Iterator[Block]:
    steps, on_device = max(tree.steps, 1), any(row.device_total_ns is not None for row in tree.rows)
    device = ("device total", "device self") if on_device else ()
    roots = [row for row in tree.rows if row.parent is None]
    most_device_ns, most_host_ns = (
        max(times) / steps
        for times in ([row.device_total_ns or 0 for row in roots], [row.host_total_ns for row in roots])
    )
    rows: list[TableRow] = []
    for row in tree.rows:
        times: TableRow = (_barred(row.host_total_ns / steps, most_host_ns), row.host_self_ns / steps)
        if on_device:
            total, own = ((time or 0) / steps for time in (row.device_total_ns, row.device_self_ns))
            times = (_barred(total, most_device_ns), own, *times)
        rows.append((row.name, *times, row.calls / steps))
    left_out = f"{count_of(tree.left_out, 'cheaper call path')} left out" if tree.left_out else of_what
    yield Heading("Call tree", definition="call-tree", aside=left_out)
    yield table(
        ("operator", *device, "host total", "host self", "calls"),
        rows,
        kinds=f"code{' duration duration' * on_device} duration duration count",
        definitions={
            f"{where} {part}": f"{where}-{part}-time" for where in ("device", "host") for part in ("total", "self")
        },
        parents=tuple(row.parent for row in tree.rows),
    )


def _graph_regions(regions: GraphRegionTable, top: int) -> Iterator[Block]:
    steps = max(regions.steps, 1)
    yield table(
        ("region", "calls", "device", "share", "of it backward"),
        (
            (
                row.name,
                row.calls / steps,
                row.device_ns / steps,
                row.device_ns / regions.device_ns if regions.device_ns else None,
                row.backward_ns / steps,
            )
            for row in regions.rows[:top]
        ),
        kinds="name count duration share duration",
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
