"""A comparison on the console: verdict first."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table as RichTable
from rich.text import Text

from lightning_perf.compare.build import UnfairError
from lightning_perf.compare.comparison import Comparison
from lightning_perf.compare.fairness import likely_cause
from lightning_perf.compare.render.tables import (
    Table,
    arm_table,
    difference_table,
    footnotes,
    gate_table,
    result_table,
    unfair_table,
)
from lightning_perf.compare.render.widths import column_widths
from lightning_perf.report.console.render import ReportConsole
from lightning_perf.report.console.safe import plain

__all__ = ["print_comparison", "print_table", "print_unfair"]

PADDING = 2
"""Columns of the terminal between two columns of a table, and a margin."""


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print the verdicts, then the tables.

    Args:
        comparison: The document.
        console: Where to; standard output when not given.
    """
    console = console or ReportConsole(highlight=False)
    for candidate in comparison.candidates:
        verdict = candidate.verdict
        console.print(Text("Verdict  ", style="bold") + plain(verdict.headline, "bold"))
        for line in verdict.details:
            console.print(plain(f"  {line}"))
        if verdict.next:
            console.print(Text("Next     ", style="bold") + plain(verdict.next))
        console.print()
    for table in (
        gate_table(comparison),
        result_table(comparison),
        arm_table(comparison),
        difference_table(comparison),
    ):
        print_table(table, console)
    for line in footnotes(comparison):
        console.print(plain(line))


def print_unfair(error: UnfairError, notes: Sequence[str] = (), console: Console | None = None) -> None:
    """Print why a comparison is refused, with the differing rows.

    Args:
        error: The refusal.
        notes: What else is known of the runs.
        console: Where to; standard error when not given.
    """
    console = console or ReportConsole(stderr=True, highlight=False)
    console.print(plain(f"Refused as unfair. {error}", "bold"))
    for candidate, differences in error.differences.items():
        print_table(unfair_table(error.baseline, candidate, differences), console)
    for note in notes:
        console.print(plain(note))
    fact = likely_cause({row.fact for rows in error.differences.values() for row in rows})
    console.print(plain(f"Is one of them what you test? --treatment {fact}. Does one not matter? --allow {fact}."))


def print_table(table: Table, console: Console) -> None:
    """Print a table; nothing when it has no rows."""
    if not table.rows:
        return
    grid = RichTable(
        title=table.title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 0, 0, 1),
    )
    widths = column_widths(_columns(table), console.width - PADDING * len(table.columns))
    for number, head in enumerate(table.columns):
        justify: JustifyMethod = "left" if number == 0 else "right"
        width = widths[number] if widths is not None else None
        grid.add_column(plain(head), justify=justify, overflow="fold", width=width)
    for row in table.rows:
        grid.add_row(*(plain(cell) for cell in row))
    console.print(grid)


def _columns(table: Table) -> list[tuple[str, ...]]:
    cells = [[plain(cell).plain for cell in row] for row in (table.columns, *table.rows)]
    return list(zip(*cells, strict=True))
