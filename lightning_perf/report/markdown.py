"""Reports as Markdown, e.g. for a pull request."""

from __future__ import annotations

from lightning_perf.markdown_text import parts_to_markdown
from lightning_perf.report.compared import Compared
from lightning_perf.report.console.compared import render_compared
from lightning_perf.report.console.render import render
from lightning_perf.report.document import PerfReport

__all__ = ["compared_to_markdown", "report_to_markdown"]

UNFOLDED = (
    "Findings",
    "Findings of the whole fit",
    "Held back",
    "Diagnosis",
    "Mistakes in mixed precision",
    "By category",
)
"""Sections that are always shown. The first other section, and all after it, are folded away."""


def report_to_markdown(report: PerfReport, *, top: int) -> str:
    """Return a report as Markdown; see `PerfReport.to_markdown`."""
    return parts_to_markdown(render(report, top=top), unfolded=UNFOLDED)


def compared_to_markdown(compared: Compared, *, top: int) -> str:
    """Return a comparison of two recordings as Markdown; see `Compared.to_markdown`."""
    return parts_to_markdown(render_compared(compared, top=top), unfolded=UNFOLDED)
