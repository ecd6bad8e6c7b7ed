"""The work of one rank: operators, kernels, modules, regions of CUDA graphs and hardware counters."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_perf.analysis.kernels.efficiency import HardwareCounters
from lightning_perf.analysis.kernels.kernel_table import GraphRegionTable, KernelTable
from lightning_perf.analysis.model.modules import ModuleTree
from lightning_perf.analysis.model.operators import OperatorRow, OperatorTable
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.savings import each
from lightning_perf.show.blocks import Block, Cell, Heading, Line, TableRow, rest, table
from lightning_perf.show.terminal_text import kernel_text
from lightning_perf.units import format_count, format_duration


def work_sections(analysis: RankAnalysis, top: int) -> Iterator[Block]:
    """Yield the tables of operators, device work and modules, cut to their first rows. The page draws its own."""
    if analysis.operators is not None and analysis.operators.rows:
        yield Heading(f"Operators, {each(analysis)}")
        yield from _operators(analysis.operators, top)
    if analysis.kernels is not None and analysis.kernels.rows:
        yield Heading(f"Device work, {each(analysis)}")
        yield from _kernels(analysis.kernels, top)
    if analysis.modules is not None and analysis.modules.rows:
        yield Heading(f"Modules, {each(analysis)}")
        yield from _modules(analysis.modules, top)


def regions_and_counters(analysis: RankAnalysis, top: int) -> Iterator[Block]:
    """Yield the named regions of CUDA graphs, and the samples of hardware counters."""
    if analysis.graph_regions is not None:
        yield Heading(f"Regions of CUDA graphs, {each(analysis)}")
        yield from _graph_regions(analysis.graph_regions, top)
    if analysis.counters is not None:
        yield Heading("Hardware counters")
        yield from _counters(analysis.counters)


def _operators(operators: OperatorTable, top: int) -> Iterator[Block]:
    steps = max(operators.steps, 1)
    on_device = operators.device_ns is not None

    def figures(row: OperatorRow) -> TableRow:
        calls, host_self = row.calls / steps, row.host_self_ns / steps
        if not on_device:
            return calls, host_self, row.host_total_ns / steps
        device_ns = row.device_self_ns or 0
        share = device_ns / operators.device_ns if operators.device_ns else None
        return calls, device_ns / steps, share, host_self

    def name(row: OperatorRow) -> Cell:
        return Cell(row.name, detail="" if row.input_shapes is None else f" {row.input_shapes}")

    rows = ((name(row), *figures(row)) for row in operators.rows[:top])
    if on_device:
        heads = ("operator", "calls", "device self", "share", "host self")
        yield table(heads, rows, kinds="name count duration share duration")
    else:
        yield table(("operator", "calls", "host self", "host total"), rows, kinds="name count duration duration")
    yield from rest(len(operators.rows) - top, "operator")


def _kernels(kernels: KernelTable, top: int) -> Iterator[Block]:
    steps = max(kernels.steps, 1)
    yield table(
        ("kernel", "calls", "time", "share", "mean", "arithmetic", "of peak"),
        (
            (
                kernel_text(row.name),
                row.calls / steps,
                row.total_ns / steps,
                row.share,
                row.mean_ns,
                row.arithmetic or "",
                row.peak_share,
            )
            for row in kernels.rows[:top]
        ),
        kinds="name count duration share duration figure share",
        definitions={"of peak": "peak-share"},
        extra=() if any(row.peak_share for row in kernels.rows) else ("of peak",),
    )
    yield from rest(len(kernels.rows) - top, "kernel")


def _modules(modules: ModuleTree, top: int) -> Iterator[Block]:
    """Yield the top of the tree. The time of a module includes that of the modules below it."""
    steps = max(modules.steps, 1)
    on_device = modules.device_ns is not None
    rows: list[TableRow] = []
    for row in modules.rows[:top]:
        times = (
            (row.device_total_ns, row.backward_device_ns) if on_device else (row.host_total_ns, row.backward_host_ns)
        )
        figures = (None if time is None else time / steps for time in times)
        rows.append((f"{'  ' * row.depth}{row.name}", row.calls / steps, *figures))
    heads = ("device forward", "device backward") if on_device else ("forward", "backward")
    yield table(("module", "calls", *heads), rows, kinds="name count duration duration")
    yield from rest(len(modules.rows) - top, "module")


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
