"""Render a comparison as Markdown, for a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_perf.compare.render.tables import (
    arm_table,
    difference_table,
    footnotes,
    gate_table,
    origin,
    overall_result,
    result_table,
    setting_table,
    title,
    unfair_tables,
    what_to_do,
)
from lightning_perf.compare.verdicts.comparison import Comparison
from lightning_perf.compare.verdicts.refusal import Unfair
from lightning_perf.tables import escape, markdown_table

__all__ = ["render_markdown", "render_refusal"]


def render_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown, with names from the runs escaped; see `Comparison.to_markdown`."""
    parts = [f"# {escape(title(comparison))}"]
    result = overall_result(comparison)
    if result is not None:
        parts.append(f"**{result}**")
    for candidate in comparison.candidates:
        verdict = candidate.verdict
        parts.append(f"**{escape(verdict.headline)}**")
        parts.append("\n".join(f"- {escape(line)}" for line in verdict.details))
        if verdict.next:
            parts.append(f"Next: {escape(verdict.next)}")
    parts += ["\n".join(f"- {escape(line)}" for line in origin(comparison)), markdown_table(setting_table(comparison))]
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
    """Return the reasons of a refusal as Markdown; see `Unfair.to_markdown`."""
    parts = [f"**Refused as unfair. {escape(refusal.message)}**"]
    parts += [markdown_table(table) for table in unfair_tables(refusal)]
    parts += ["\n".join(f"- {escape(note)}" for note in notes), escape(what_to_do(refusal))]
    return "\n\n".join(part for part in parts if part) + "\n"
