"""The blocks of a document as JSON for its page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from lightning_perf.show.blocks import Block

Parts: TypeAlias = Mapping[str, Iterable[Block]]
"""The blocks of each part of a page. A view places the parts, next to its charts."""


def add_parts(document_json: bytes, parts: Parts) -> bytes:
    """Return the JSON of a document with a further member ``parts``: lists of blocks by the name of their part."""
    found = {name: blocks for name, items in parts.items() if (blocks := tuple(items))}
    comma = b"" if document_json == b"{}" else b","
    return document_json[:-1] + comma + b'"parts":' + msgspec.json.encode(found) + b"}"
