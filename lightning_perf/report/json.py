"""Documents as JSON for machines."""

from __future__ import annotations

from lightning_perf.report.compared import Compared
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.atomic import encode_document

__all__ = ["render_json"]


def render_json(document: PerfReport | Compared) -> str:
    """The document, indented, with a final newline."""
    return encode_document(document).decode()
