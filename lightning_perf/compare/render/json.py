"""A comparison as JSON, for machines."""

from __future__ import annotations

import msgspec

from lightning_perf.compare.verdicts.comparison import Comparison
from lightning_perf.compare.verdicts.refusal import Unfair
from lightning_perf.run_files.atomic import encode_document

__all__ = ["parse_json", "render_json"]


def render_json(document: Comparison | Unfair) -> str:
    """The whole document, of a comparison or of its refusal, indented; what is None there is null here."""
    return encode_document(document).decode()


def parse_json(text: str | bytes) -> Comparison:
    """Read a comparison that `render_json` wrote.

    Raises:
        msgspec.DecodeError: The text is no comparison.
    """
    return msgspec.json.decode(text, type=Comparison)
