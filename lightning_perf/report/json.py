"""The report as JSON for machines."""

from __future__ import annotations

from lightning_perf.report.document import PerfReport, to_json

__all__ = ["render_json"]


def render_json(report: PerfReport) -> str:
    """The document, indented, with a final newline."""
    return to_json(report, indent=2).decode() + "\n"
