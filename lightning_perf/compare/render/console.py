"""A comparison on the console: verdict first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table as RichTable
from rich.text import Text

from lightning_perf.compare.comparison import Comparison
from lightning_perf.compare.refusal import Unfair
from lightning_perf.compare.render.tables import (
    Table,
    arm_table,
    difference_table,
    footnotes,
    gate_table,
    result_table,
    unfair_tables,
    what_to_do,
)
from lightning_perf.compare.render.widths import fit
from lightning_perf.report.console.render import ReportConsole
from lightning_perf.report.console.safe import plain

__all__ = ["print_comparison", "print_table", "print_unfair"]

PADDING = 2
"""Columns of the terminal between two columns of a table, and a margin."""


def print_comparison(comparison: Comparison, *, file: IO[str] | None, width: int | None) -> None:
    """Print a comparison; see `Comparison.print`."""
    console = ReportConsole(file=file, width=width, highlight=False)
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


def print_unfair(refusal: Unfair, notes: Sequence[str], *, file: IO[str] | None, width: int | None) -> None:
    """Print why a comparison is refused; see `Unfair.print`."""
    console = ReportConsole(file=file, stderr=True, width=width, highlight=False)
    console.print(plain(f"Refused as unfair. {refusal.message}", "bold"))
    for table in unfair_tables(refusal):
        print_table(table, console)
    for note in notes:
        console.print(plain(note))
    console.print(plain(what_to_do(refusal)))


def print_table(table: Table, console: Console) -> None:
    """Print a table; nothing when it has no rows."""
    if not table.rows:
        return
    safe = [tuple(plain(cell).plain for cell in row) for row in (table.columns, *table.rows)]
    parts = fit(Table(table.title, safe[0], tuple(safe[1:])), console.width, PADDING)
    for number, part in enumerate(parts):
        grid = RichTable(
            title=None if number else plain(part.title),
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 0, 0, 1),
        )
        for place, head in enumerate(part.columns):
            justify: JustifyMethod = "right" if place else "left"
            grid.add_column(Text(head), justify=justify, overflow="fold")
        for row in part.rows:
            grid.add_row(*map(Text, row))
        console.print(grid)
