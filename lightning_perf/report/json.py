"""Documents as JSON for machines."""

from __future__ import annotations

import msgspec

from lightning_perf.report.compared import Compared
from lightning_perf.report.document import PerfReport

__all__ = ["render_json"]


def render_json(document: PerfReport | Compared) -> str:
    """The document, indented, with a final newline."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
