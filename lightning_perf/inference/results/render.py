"""Render the documents on the console and as Markdown."""

from __future__ import annotations

from typing import IO

from rich.text import Text

from lightning_perf.inference.results.sweep import Sweep
from lightning_perf.inference.results.tables import (
    accuracy_table,
    cold_table,
    count_line,
    failures,
    footnotes,
    headline,
    latency_table,
    layer_table,
    sweep_footnotes,
    sweep_table,
    sweep_title,
    tradeoff_table,
)
from lightning_perf.inference.results.tradeoff import Tradeoff
from lightning_perf.report.console.render import ReportConsole
from lightning_perf.tables import escape, markdown_table, print_table
from lightning_perf.terminal_text import plain


def print_tradeoff(tradeoff: Tradeoff, *, file: IO[str] | None, layers: int, width: int | None) -> None:
    """Print a trade-off; see `Tradeoff.print`."""
    console = ReportConsole(file=file, width=width, highlight=False)
    recommendation = tradeoff.recommendation
    if recommendation is not None:
        console.print(Text("Deploy   ", style="bold") + plain(recommendation.variant or "no variant", "bold"))
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


def render_markdown(tradeoff: Tradeoff, *, layers: int) -> str:
    """Return a trade-off as Markdown; see `Tradeoff.to_markdown`."""
    parts = []
    recommendation = tradeoff.recommendation
    if recommendation is not None:
        parts.append(f"**Deploy {escape(recommendation.variant or 'no variant')}.** {escape(recommendation.reason)}")
    parts.append(f"{escape(headline(tradeoff))}.")
    if line := count_line(tradeoff):
        parts.append(escape(line))
    tables = (
        tradeoff_table(tradeoff),
        *(latency_table(tradeoff, cell) for cell in tradeoff.cells),
        accuracy_table(tradeoff),
        cold_table(tradeoff),
        layer_table(tradeoff, layers),
    )
    parts += [f"### {escape(table.title)}\n\n{markdown_table(table)}" for table in tables if table.rows]
    if missed := failures(tradeoff):
        lines = "\n".join(f"- {escape(name)}: {escape(reason)}" for name, reason in missed)
        parts.append(f"### Not measured\n\n{lines}")
    parts.append("\n".join(f"- {escape(note)}" for note in footnotes(tradeoff)))
    return "\n\n".join(parts) + "\n"


def print_sweep(sweep: Sweep, *, file: IO[str] | None, width: int | None) -> None:
    """Print a sweep; see `Sweep.print`."""
    console = ReportConsole(file=file, width=width, highlight=False)
    print_table(sweep_table(sweep), console)
    for line in sweep_footnotes(sweep):
        console.print(plain(line))


def render_sweep(sweep: Sweep) -> str:
    """Return a sweep as Markdown; see `Sweep.to_markdown`."""
    table, notes = markdown_table(sweep_table(sweep)), "\n".join(f"- {escape(line)}" for line in sweep_footnotes(sweep))
    return "\n\n".join(part for part in (f"### {escape(sweep_title(sweep))}", table, notes) if part) + "\n"
