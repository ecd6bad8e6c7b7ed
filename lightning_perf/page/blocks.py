"""The blocks of a document as JSON for its page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import msgspec

from lightning_perf.show.blocks import Block, Cell, Column, Figure, Part, Span

Parts: TypeAlias = Mapping[str, Iterable[Block]]
"""The blocks of each part of a page. A view places the parts, next to its charts."""


def add_parts(document_json: bytes, parts: Parts) -> bytes:
    """Return the JSON of a document with a further member ``parts``: lists of blocks by the name of their part."""
    plain = {name: [_plain(block) for block in blocks] for name, blocks in parts.items()}
    found = msgspec.json.encode({name: blocks for name, blocks in plain.items() if blocks})
    return document_json[:-1] + b',"parts":' + found + b"}"


def _plain(value: Any) -> Any:
    """Return a block, or a part of one, as JSON values without the fields that have their default."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if not is_dataclass(value):
        return value
    members = ((field.name, getattr(value, field.name), field.default) for field in fields(value))
    found = {name: _plain(member) for name, member, default in members if member != default}
    if isinstance(value, Cell) and found.keys() <= {"text"}:
        return value.text
    return (
        found
        if isinstance(value, (Cell, Column, Figure, Part, Span))
        else {"block": type(value).__name__.lower(), **found}
    )
