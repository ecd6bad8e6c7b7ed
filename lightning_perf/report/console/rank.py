"""One rank on the console: step time, phases, arithmetic, operators, kernels and modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.bar import Bar
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from lightning_perf.analysis.kernels.arithmetic import Arithmetic
from lightning_perf.analysis.kernels.graph_regions import GraphRegionTable
from lightning_perf.analysis.kernels.hardware_counters import HardwareCounters
from lightning_perf.analysis.kernels.kernel_table import KernelTable
from lightning_perf.analysis.kernels.tensor_core_eligibility import REASONS
from lightning_perf.analysis.model.modules import ModuleTree
from lightning_perf.analysis.model.operators import OperatorRow, OperatorTable
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.steps.breakdown import Breakdown
from lightning_perf.analysis.steps.phases import Phases
from lightning_perf.findings.savings import each
from lightning_perf.report.console.device import device_sections
from lightning_perf.report.console.language_model import attention_section, language_model_section, recompute_section
from lightning_perf.report.console.layout import label, table
from lightning_perf.report.labels import CATEGORY_LABELS, PHASE_LABELS, count_of
from lightning_perf.terminal_text import kernel_text
from lightning_perf.units import NOT_AVAILABLE, format_count, format_duration, format_share

__all__ = [
    "rank_sections",
    "work_sections",
]


def work_sections(analysis: RankAnalysis, top: int) -> Iterator[tuple[str, RenderableType]]:
    """Yield the tables of operators, device work, modules, graph regions and counters, cut to their first rows.

    Args:
        analysis: The rank's analyses.
        top: How many rows.

    Yields:
        Title and body.
    """
    if analysis.operators is not None and analysis.operators.rows:
        yield f"Operators, {each(analysis)}", _operators(analysis.operators, top)
    if analysis.kernels is not None and analysis.kernels.rows:
        yield f"Device work, {each(analysis)}", _kernels(analysis.kernels, top)
    if analysis.modules is not None and analysis.modules.rows:
        yield f"Modules, {each(analysis)}", _modules(analysis.modules, top)
    if analysis.graph_regions is not None:
        yield f"Regions of CUDA graphs, {each(analysis)}", _graph_regions(analysis.graph_regions, top)
    if analysis.counters is not None:
        yield "Hardware counters", _counters(analysis.counters)


def _graph_regions(regions: GraphRegionTable, top: int) -> RenderableType:
    steps = max(regions.steps, 1)
    grid = table("region", "calls", "device", "share", "of it backward")
    for row in regions.rows[:top]:
        grid.add_row(
            label(row.name),
            format_count(row.calls / steps),
            format_duration(row.device_ns / steps),
            format_share(row.device_ns / regions.device_ns if regions.device_ns else None),
            format_duration(row.backward_ns / steps),
        )
    lines = [Text(f"Outside of named regions: {format_duration(regions.unattributed_device_ns / steps)}.", style="dim")]
    if len(regions.rows) > top:
        lines.insert(0, Text(f"… and {len(regions.rows) - top:,} more (--top N shows more)", style="dim"))
    return Group(grid, *lines)


def _counters(counters: HardwareCounters) -> RenderableType:
    grid = table("counter", "device", "mean", "minimum–maximum")
    for row in counters.rows:
        between = f"{format_count(row.minimum)}–{format_count(row.maximum)}"
        grid.add_row(label(row.name), str(row.device), format_count(row.mean), between)
    if counters.step_energy_j is None:
        return grid
    return Group(grid, Text(f"Energy: {format_count(counters.step_energy_j)} J per step."))


def _operators(operators: OperatorTable, top: int) -> RenderableType:
    steps = max(operators.steps, 1)
    on_device = operators.device_ns is not None
    figures = ("calls", "device self", "share", "host self") if on_device else ("calls", "host self", "host total")
    grid = table("operator", *figures)

    def cells(row: OperatorRow) -> list[str]:
        calls, host_self = format_count(row.calls / steps), format_duration(row.host_self_ns / steps)
        if not on_device:
            return [calls, host_self, format_duration(row.host_total_ns / steps)]
        device_ns = row.device_self_ns or 0
        share = device_ns / operators.device_ns if operators.device_ns else None
        return [calls, format_duration(device_ns / steps), format_share(share), host_self]

    for row in operators.rows[:top]:
        shapes = "" if row.input_shapes is None else f" {row.input_shapes}"
        grid.add_row(label(row.name, detail=shapes), *cells(row))
    return Group(grid, *_rest(len(operators.rows) - top, "operator"))


def _kernels(kernels: KernelTable, top: int) -> RenderableType:
    steps = max(kernels.steps, 1)
    grid = table("kernel", "calls", "time", "share", "mean", "arithmetic")
    for row in kernels.rows[:top]:
        grid.add_row(
            label(kernel_text(row.name)),
            format_count(row.calls / steps),
            format_duration(row.total_ns / steps),
            format_share(row.share),
            format_duration(row.mean_ns),
            row.arithmetic or "",
        )
    return Group(grid, *_rest(len(kernels.rows) - top, "kernel"))


def _modules(modules: ModuleTree, top: int) -> RenderableType:
    """Return the top of the tree. The time of a module includes that of the modules below it."""
    steps = max(modules.steps, 1)
    on_device = modules.device_ns is not None
    grid = table("module", "calls", *(("device forward", "device backward") if on_device else ("forward", "backward")))
    for row in modules.rows[:top]:
        forward, backward = (
            (row.device_total_ns, row.backward_device_ns) if on_device else (row.host_total_ns, row.backward_host_ns)
        )
        grid.add_row(
            label(f"{'  ' * row.depth}{row.name}"),
            format_count(row.calls / steps),
            *(format_duration(None if time is None else time / steps) for time in (forward, backward)),
        )
    return Group(grid, *_rest(len(modules.rows) - top, "module"))


def _rest(number: int, noun: str) -> Iterator[Text]:
    if number > 0:
        yield Text(f"… and {count_of(number, f'more {noun}')} (--top N shows more)", style="dim")


BAR_WIDTH = 16

BARS_FROM = 76
"""From this number of columns on, a page has room for bars next to names and figures."""


def rank_sections(analysis: RankAnalysis, top: int) -> Iterator[tuple[str, RenderableType]]:
    """Yield the sections that the recording of this rank supports.

    Args:
        analysis: The rank's analyses.
        top: Rows of the longer tables.

    Yields:
        Title and body.
    """
    breakdown = analysis.breakdown
    if breakdown.marked:
        steps = breakdown.averaged_steps
        title = f"Step time: {format_duration(breakdown.wall.mean_ns)}{f', mean of {steps}' if steps > 1 else ''}"
    else:
        title = f"Whole recording: {format_duration(breakdown.wall.mean_ns)}"
    yield title, _step_time(breakdown)
    yield "Phases", _phases(analysis.phases, breakdown)
    if analysis.arithmetic is not None:
        yield f"Arithmetic of device compute, {each(analysis)}", _arithmetic(analysis.arithmetic, each(analysis))
    if analysis.language_model is not None:
        yield "Language model", language_model_section(analysis.language_model)
    if analysis.attention is not None:
        yield f"Attention, {each(analysis)}", attention_section(analysis.attention, top)
    if analysis.recompute is not None:
        yield "Gradient checkpointing", recompute_section(analysis.recompute, analysis)
    yield from device_sections(analysis, top)
    yield from work_sections(analysis, top)


def _step_time(breakdown: Breakdown) -> RenderableType:
    outliers = [
        f"Step {o.number} is an outlier: {format_duration(o.wall_ns)}, "
        f"{'+' if o.excess_ns > 0 else ''}{format_duration(o.excess_ns)} mostly in {CATEGORY_LABELS[o.category]}."
        for o in breakdown.outliers
    ]
    return Group(_Categories(breakdown), *(Text(line, style="yellow") for line in outliers))


@dataclass(frozen=True)
class _Categories:
    """The table of the breakdown, with bars if the page is wide enough."""

    breakdown: Breakdown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _categories(self.breakdown, bars=options.max_width >= BARS_FROM)


def _categories(breakdown: Breakdown, *, bars: bool) -> RenderableType:
    grid = table("category", "time", "share")
    if bars:
        grid.add_column("", width=BAR_WIDTH)
    spread = breakdown.averaged_steps > 1
    if spread:
        grid.add_column("minimum–maximum", justify="right", no_wrap=True)
    for row in breakdown.categories:
        if not row.mean_ns:
            continue
        cells: list[RenderableType] = [
            label(f"{'  ' if row.parent else ''}{CATEGORY_LABELS[row.name]}", "dim" if row.parent else ""),
            format_duration(row.mean_ns),
            format_share(row.share),
        ]
        if bars:
            bar = row.share if row.share and not row.parent else 0.0
            cells.append(Bar(1.0, 0.0, bar, width=BAR_WIDTH, color="cyan"))
        if spread:
            cells.append(f"{format_duration(row.min_ns)} – {format_duration(row.max_ns)}")
        grid.add_row(*cells)
    return grid


def _phases(phases: Phases, breakdown: Breakdown) -> RenderableType:
    """Return a table with a row per phase and a column per main category. Small categories share the last column."""
    columns = [row.name for row in breakdown.categories if row.parent is None and row.mean_ns]
    columns.sort(key=lambda name: -(breakdown.category(name).mean_ns or 0.0))
    columns = columns[:4]
    grid = table("phase", "time", "share", *(CATEGORY_LABELS[name].replace(" ", "\n", 1) for name in columns))
    for phase in phases.phases:
        if not phase.mean_ns:
            continue
        grid.add_row(
            PHASE_LABELS[phase.name],
            format_duration(phase.mean_ns),
            format_share(phase.share),
            *(_cell(phases.time_ns(phase.name, name)) for name in columns),
        )
    return grid


def _cell(time_ns: float | None) -> str:
    return format_duration(time_ns) if time_ns else NOT_AVAILABLE


def _kernel_count(number: float) -> str:
    return f"{format_count(number)} kernel{'' if number == 1 else 's'}"


def _arithmetic(arithmetic: Arithmetic, of_what: str) -> RenderableType:
    grid: Table = table("arithmetic", "time", "share")
    grid.add_column("source")
    steps = max(arithmetic.steps, 1)
    for row in arithmetic.rows:
        if not row.time_ns:
            continue
        by = [what for what, part in (("operator types", row.by_operator_ns), ("kernel name", row.by_name_ns)) if part]
        grid.add_row(
            row.name.upper() if row.name[0] in "ftb" else row.name,
            format_duration(row.time_ns / steps),
            format_share(row.share),
            ", ".join(by) or NOT_AVAILABLE,
        )
    lines = []
    if arithmetic.tensor_core_share is not None:
        lines.append(Text(f"On Tensor Cores: {format_share(arithmetic.tensor_core_share)}"))
    lines += [
        Text(
            f"Matrix products without Tensor Cores: {format_duration(unused.time_ns / steps)} {of_what} in "
            f"{_kernel_count(unused.kernels / steps)}, because {REASONS[unused.reason]}"
        )
        for unused in arithmetic.eligible_unused
    ]
    return Group(grid, *lines)
