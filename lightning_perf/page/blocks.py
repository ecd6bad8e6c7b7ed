"""The blocks of a document as JSON for its page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

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
    if not isinstance(value, Struct):
        return value
    names, defaults = value.__struct_fields__, value.__struct_defaults__
    given = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    members = ((name, getattr(value, name)) for name in names)
    found = {name: _plain(member) for name, member in members if name not in given or member != given[name]}
    if isinstance(value, Cell) and found.keys() <= {"text"}:
        return value.text
    return (
        found
        if isinstance(value, (Cell, Column, Figure, Part, Span))
        else {"block": type(value).__name__.lower(), **found}
    )
