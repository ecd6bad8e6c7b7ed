"""A trade-off on the console: what to deploy first."""

from __future__ import annotations

from typing import IO

from rich.text import Text

from lightning_perf.inference.render.tables import (
    accuracy_table,
    cold_table,
    count_line,
    failures,
    footnotes,
    headline,
    latency_table,
    layer_table,
    tradeoff_table,
)
from lightning_perf.inference.tradeoff import Tradeoff
from lightning_perf.report.console.render import ReportConsole
from lightning_perf.report.console.safe import plain
from lightning_perf.tables import print_table

__all__ = ["print_tradeoff"]


def print_tradeoff(tradeoff: Tradeoff, *, file: IO[str] | None, layers: int, width: int | None) -> None:
    """Print a trade-off; see `Tradeoff.print`."""
    console = ReportConsole(file=file, width=width, highlight=False)
    recommendation = tradeoff.recommendation
    if recommendation is not None:
        console.print(Text("Deploy   ", style="bold") + plain(recommendation.variant or "none of them", "bold"))
        console.print(Text("Why      ", style="bold") + plain(recommendation.reason))
    console.print(Text("Model    ", style="bold") + plain(headline(tradeoff)))
    if line := count_line(tradeoff):
        console.print(Text("Work     ", style="bold") + plain(line))
    console.print()
    print_table(tradeoff_table(tradeoff), console)
    for cell in tradeoff.cells:
        print_table(latency_table(tradeoff, cell), console)
    for table in (
        accuracy_table(tradeoff),
        cold_table(tradeoff),
        layer_table(tradeoff, layers),
    ):
        print_table(table, console)
    for name, reason in failures(tradeoff):
        console.print(Text("Not measured  ", style="yellow") + plain(f"{name}: {reason}"))
    for note in footnotes(tradeoff):
        console.print(plain(note))
