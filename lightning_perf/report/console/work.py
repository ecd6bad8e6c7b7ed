"""Tables of what ran: operators."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from lightning_perf.analysis.operators import OperatorRow, OperatorTable
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.report.console.safe import plain
from lightning_perf.report.console.summary import table
from lightning_perf.report.words import count_of
from lightning_perf.units import format_count, format_duration, format_share

__all__ = ["work_sections"]


def work_sections(analysis: RankAnalysis, top: int) -> Iterator[tuple[str, RenderableType]]:
    """The longest rows of each table.

    Args:
        analysis: The rank's analyses.
        top: How many rows.

    Yields:
        Title and body.
    """
    if analysis.operators is not None and analysis.operators.rows:
        yield "Operators, a step", _operators(analysis.operators, top)


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
        name = plain(row.name)
        if row.input_shapes is not None:
            name.append_text(plain(f" {row.input_shapes}", "dim"))
        grid.add_row(name, *cells(row))
    return Group(grid, *_rest(len(operators.rows) - top, "operator"))


def _rest(number: int, noun: str) -> Iterator[Text]:
    if number > 0:
        yield Text(f"… and {count_of(number, f'more {noun}')} (--top N shows more)", style="dim")
