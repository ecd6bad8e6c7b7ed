"""A tuning on the console: the lines to change first."""

from __future__ import annotations

from typing import IO

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from lightning_perf.report.console.safe import plain
from lightning_perf.tune.render.tables import footnotes, not_applicable, reasons, trial_table, verdict
from lightning_perf.tune.result import TuneResult

__all__ = ["print_result"]


def print_result(result: TuneResult, *, file: IO[str] | None, width: int | None) -> None:
    """Print the result of a tuning; see `TuneResult.print`."""
    out = Console(file=file, width=width, highlight=False)
    out.print(plain(verdict(result), style="bold"))
    if result.lines:
        out.print(Text("\nChange", style="bold"))
        for line in result.lines:
            out.print(plain(f"  {line}"), soft_wrap=True)
    table = trial_table(result)
    if table.rows:
        out.print()
        out.print(_table(table.columns, table.rows))
    for title, groups in (("Why", reasons(result)), ("Does not apply", not_applicable(result))):
        if groups:
            out.print(Text(title, style="bold"))
            for names, reason in groups:
                out.print(Padding(plain(f"{names}: {reason}"), (0, 0, 0, 2)))
    for note in footnotes(result):
        out.print(plain(note, style="dim"))


def _table(columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> Grid:
    table = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number in (1, 2) else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(plain, row))
    return table
