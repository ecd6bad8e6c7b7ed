"""A comparison as JSON, for machines."""

from __future__ import annotations

import msgspec

from lightning_perf.compare.comparison import Comparison

__all__ = ["parse_json", "render_json"]


def render_json(comparison: Comparison) -> str:
    """The whole document, indented; what is None there is null here."""
    return msgspec.json.format(msgspec.json.encode(comparison), indent=2).decode() + "\n"


def parse_json(text: str | bytes) -> Comparison:
    """Read a comparison that `render_json` wrote.

    Raises:
        msgspec.DecodeError: The text is no comparison.
    """
    return msgspec.json.decode(text, type=Comparison)
