"""A comparison as Markdown, for a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
from lightning_perf.report.console.safe import plain

__all__ = ["escape", "markdown_table", "render_markdown", "render_refusal"]

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$&])")


def render_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown, names from the runs escaped; see `Comparison.to_markdown`."""
    parts = []
    for candidate in comparison.candidates:
        verdict = candidate.verdict
        parts.append(f"**{escape(verdict.headline)}**")
        parts.append("\n".join(f"- {escape(line)}" for line in verdict.details))
        if verdict.next:
            parts.append(f"Next: {escape(verdict.next)}")
    if comparison.gates:
        parts.append(markdown_table(gate_table(comparison)))
    parts += [markdown_table(result_table(comparison)), markdown_table(difference_table(comparison))]
    parts.append(
        "<details><summary>Runs</summary>\n\n"
        + markdown_table(arm_table(comparison))
        + "\n\n"
        + "\n".join(f"- {escape(line)}" for line in footnotes(comparison))
        + "\n\n</details>"
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def render_refusal(refusal: Unfair, notes: Sequence[str]) -> str:
    """Return why a comparison is refused as Markdown; see `Unfair.to_markdown`."""
    parts = [f"**Refused as unfair. {escape(refusal.message)}**"]
    parts += [markdown_table(table) for table in unfair_tables(refusal)]
    parts += ["\n".join(f"- {escape(note)}" for note in notes), escape(what_to_do(refusal))]
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_table(table: Table) -> str:
    """A table in GitHub-flavoured Markdown, its cells escaped; empty when it has no rows."""
    if not table.rows:
        return ""
    lines = ["| " + " | ".join(escape(head) for head in table.columns) + " |"]
    lines.append("|---" + "|---:" * (len(table.columns) - 1) + "|")
    lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in table.rows]
    return "\n".join(lines)


def escape(text: str) -> str:
    """Text that shows as itself: no markup in it does anything."""
    return _SPECIAL.sub(r"\\\1", plain(text).plain)
