"""Print a comparison on the console, the verdict first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from rich.text import Text

from lightning_perf.compare.render.tables import (
    arm_table,
    difference_table,
    footnotes,
    gate_table,
    result_table,
    unfair_tables,
    what_to_do,
)
from lightning_perf.compare.verdicts.comparison import Comparison
from lightning_perf.compare.verdicts.refusal import Unfair
from lightning_perf.report.console.render import ReportConsole
from lightning_perf.tables import print_table
from lightning_perf.terminal_text import plain

__all__ = ["print_comparison", "print_unfair"]


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
