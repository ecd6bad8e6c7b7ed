"""A tuning as Markdown, for a pull request or a results page."""

from __future__ import annotations

from lightning_perf.tables import escape, markdown_table
from lightning_perf.tune.render.tables import footnotes, not_applicable, reasons, trial_table, verdict
from lightning_perf.tune.result import TuneResult

__all__ = ["render_markdown"]


def render_markdown(result: TuneResult) -> str:
    """Return the result of a tuning as Markdown; see `TuneResult.to_markdown`."""
    parts = [f"**{escape(verdict(result))}**"]
    if result.lines:
        parts.append("```py\n" + "\n".join(line.replace("```", "'''") for line in result.lines) + "\n```")
    parts.append(markdown_table(trial_table(result)))
    for title, groups in (("Why", reasons(result)), ("Does not apply", not_applicable(result))):
        if groups:
            parts.append(f"{title}:")
            parts.append("\n".join(f"- {escape(names)}: {escape(reason)}" for names, reason in groups))
    parts.append("\n".join(f"- {escape(note)}" for note in footnotes(result)))
    return "\n\n".join(part for part in parts if part) + "\n"
