"""A trade-off as Markdown, for a pull request or a results page."""

from __future__ import annotations

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
from lightning_perf.tables import escape, markdown_table

__all__ = ["render_markdown"]


def render_markdown(tradeoff: Tradeoff, *, layers: int) -> str:
    """Return a trade-off as Markdown; see `Tradeoff.to_markdown`."""
    parts = []
    recommendation = tradeoff.recommendation
    if recommendation is not None:
        parts.append(f"**Deploy {escape(recommendation.variant or 'none of them')}.** {escape(recommendation.reason)}")
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
