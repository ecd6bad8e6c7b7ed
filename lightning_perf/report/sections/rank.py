"""One rank: step time, phases, arithmetic, operators, kernels and modules."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_perf.analysis.kernels.arithmetic import Arithmetic
from lightning_perf.analysis.kernels.efficiency import HardwareCounters
from lightning_perf.analysis.kernels.kernel_table import GraphRegionTable, KernelTable
from lightning_perf.analysis.kernels.tensor_core_eligibility import REASONS
from lightning_perf.analysis.model.modules import ModuleTree
from lightning_perf.analysis.model.operators import OperatorRow, OperatorTable
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.steps.breakdown import Breakdown, Outlier
from lightning_perf.analysis.steps.phases import Phases
from lightning_perf.findings.savings import each
from lightning_perf.report.labels import CATEGORY_LABELS, PHASE_LABELS
from lightning_perf.report.sections.device import device_sections
from lightning_perf.report.sections.language_model import language_model_sections
from lightning_perf.show.blocks import Block, Cell, Heading, Line, Table, TableRow, rest, table
from lightning_perf.show.terminal_text import kernel_text
from lightning_perf.units import NOT_AVAILABLE, format_count, format_duration, format_share


def rank_sections(analysis: RankAnalysis, top: int) -> Iterator[Block]:
    """Yield the sections that the recording of this rank supports."""
    breakdown = analysis.breakdown
    wall = format_duration(breakdown.wall.mean_ns)
    steps = breakdown.averaged_steps
    mean = f", mean of {steps}" if steps > 1 else ""
    yield Heading(f"Step time: {wall}{mean}" if breakdown.marked else f"Whole recording: {wall}")
    yield from _step_time(breakdown)
    yield Heading("Phases")
    yield _phases(analysis.phases, breakdown)
    if analysis.arithmetic is not None:
        yield Heading(f"Arithmetic of device compute, {each(analysis)}")
        yield from _arithmetic(analysis.arithmetic, each(analysis))
    yield from language_model_sections(analysis, top)
    yield from device_sections(analysis, top)
    yield from _work_sections(analysis, top)


def _work_sections(analysis: RankAnalysis, top: int) -> Iterator[Block]:
    """Yield the tables of operators, device work, modules, graph regions and counters, cut to their first rows."""
    if analysis.operators is not None and analysis.operators.rows:
        yield Heading(f"Operators, {each(analysis)}")
        yield from _operators(analysis.operators, top)
    if analysis.kernels is not None and analysis.kernels.rows:
        yield Heading(f"Device work, {each(analysis)}")
        yield from _kernels(analysis.kernels, top)
    if analysis.modules is not None and analysis.modules.rows:
        yield Heading(f"Modules, {each(analysis)}")
        yield from _modules(analysis.modules, top)
    yield from device_regions(analysis, top)


def device_regions(analysis: RankAnalysis, top: int) -> Iterator[Block]:
    """Yield the named regions of CUDA graphs, and the samples of hardware counters."""
    if analysis.graph_regions is not None:
        yield Heading(f"Regions of CUDA graphs, {each(analysis)}")
        yield from _graph_regions(analysis.graph_regions, top)
    if analysis.counters is not None:
        yield Heading("Hardware counters")
        yield from _counters(analysis.counters)


def _step_time(breakdown: Breakdown) -> Iterator[Block]:
    yield breakdown_table(breakdown)
    yield from (Line(outlier_text(outlier), "warning") for outlier in breakdown.outliers)


def breakdown_table(breakdown: Breakdown) -> Table:
    """Return the mean step time by category."""
    spread = breakdown.averaged_steps > 1
    rows: list[TableRow] = []
    for row in breakdown.categories:
        if not row.mean_ns:
            continue
        name = f"{'  ' if row.parent else ''}{CATEGORY_LABELS[row.name]}"
        share = Cell(format_share(row.share), row.share, bar=row.share if row.share and not row.parent else 0.0)
        between = (f"{format_duration(row.min_ns)} – {format_duration(row.max_ns)}",) if spread else ()
        color = "" if row.parent else row.name
        rows.append((Cell(name, style="quiet" if row.parent else "plain", color=color), row.mean_ns, share, *between))
    heads = ("category", "time", "share", "minimum–maximum")
    definitions = {"category": "step-time-breakdown"}
    return table(heads if spread else heads[:-1], rows, kinds="name duration share figure", definitions=definitions)


def outlier_text(outlier: Outlier) -> str:
    """Return by how much an unusual step differs, and in which category."""
    more = f"{'+' if outlier.excess_ns > 0 else ''}{format_duration(outlier.excess_ns)}"
    return (
        f"Step {outlier.number} is an outlier: {format_duration(outlier.wall_ns)}, {more} mostly in "
        f"{CATEGORY_LABELS[outlier.category]}."
    )


def _phases(phases: Phases, breakdown: Breakdown) -> Table:
    """Return a table with a row per phase and a column per main category. Small categories have no column."""
    columns = [row.name for row in breakdown.categories if row.parent is None and row.mean_ns]
    columns.sort(key=lambda name: -(breakdown.category(name).mean_ns or 0.0))
    columns = columns[:4]
    return table(
        ("phase", "time", "share", *(CATEGORY_LABELS[name].replace(" ", "\n", 1) for name in columns)),
        (
            (
                PHASE_LABELS[phase.name],
                phase.mean_ns,
                phase.share,
                *((phases.time_ns(phase.name, name) or None) for name in columns),
            )
            for phase in phases.phases
            if phase.mean_ns
        ),
        kinds="name duration share" + " duration" * len(columns),
    )


def _arithmetic(arithmetic: Arithmetic, of_what: str) -> Iterator[Block]:
    yield arithmetic_table(arithmetic)
    if arithmetic.tensor_core_share is not None and any(
        row.time_ns for row in arithmetic.rows if row.name != "unknown"
    ):
        yield Line(f"On Tensor Cores: {format_share(arithmetic.tensor_core_share)}")
    yield from map(Line, unused_sentences(arithmetic, of_what))


def arithmetic_table(arithmetic: Arithmetic) -> Table:
    """Return the compute time of each number format."""
    steps = max(arithmetic.steps, 1)
    rows: list[TableRow] = []
    for row in arithmetic.rows:
        if not row.time_ns:
            continue
        by = [what for what, part in (("operator types", row.by_operator_ns), ("kernel name", row.by_name_ns)) if part]
        rows.append((arithmetic_name(row.name), row.time_ns / steps, row.share, ", ".join(by) or NOT_AVAILABLE))
    return table(("arithmetic", "time", "share", "source"), rows, kinds="name duration share text")


def arithmetic_name(name: str) -> str:
    """Return the label of an arithmetic: ``FP16``, but ``integer``."""
    return name.upper() if name[0] in "ftb" else name


def unused_sentences(arithmetic: Arithmetic, of_what: str, cores: str = "Tensor Cores") -> Iterator[str]:
    """Yield the matrix products that do not run on matrix units, and why."""
    steps = max(arithmetic.steps, 1)
    for unused in arithmetic.eligible_unused:
        number = unused.kernels / steps
        yield (
            f"Matrix products without {cores}: {format_duration(unused.time_ns / steps)} {of_what} in "
            f"{format_count(number)} kernel{'' if number == 1 else 's'}, because {REASONS[unused.reason]}"
        )


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
        ("kernel", "calls", "time", "share", "mean", "arithmetic"),
        (
            (
                kernel_text(row.name),
                row.calls / steps,
                row.total_ns / steps,
                row.share,
                row.mean_ns,
                row.arithmetic or "",
            )
            for row in kernels.rows[:top]
        ),
        kinds="name count duration share duration figure",
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
