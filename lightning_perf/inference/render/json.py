"""A trade-off as JSON, for machines."""

from __future__ import annotations

from lightning_perf.inference.tradeoff import Tradeoff, to_json

__all__ = ["render_json"]


def render_json(tradeoff: Tradeoff) -> str:
    """The whole document, indented; `lightning_perf.inference.tradeoff.from_json` reads it."""
    return to_json(tradeoff, indent=2).decode() + "\n"
