"""Tables of what ran: operators, kernels and modules."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from lightning_perf.analysis.kernels import KernelTable
from lightning_perf.analysis.modules import ModuleTree
from lightning_perf.analysis.operators import OperatorRow, OperatorTable
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.amdahl import each
from lightning_perf.report.console.safe import kernel_text
from lightning_perf.report.console.summary import label, table
from lightning_perf.report.labels import count_of
from lightning_perf.units import format_count, format_duration, format_share

__all__ = ["work_sections"]


def work_sections(analysis: RankAnalysis, top: int) -> Iterator[tuple[str, RenderableType]]:
    """The first rows of each table.

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
    """The head of the tree: a module's time holds that of those below it."""
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
