"""Cuts JSON values to a number of bytes, and returns the rest page by page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from lightning_perf.errors import LocatedError

LIMIT_BYTES = 16_384
"""Largest answer, in bytes of UTF-8 JSON. About 4,000 to 6,000 tokens."""

_LEAST = 80
"""Bytes from which a part is worth showing. Below, it has only a handle."""

_ENOUGH = 8
"""Entries that a page should have, even if each of them has to be cut for that."""

_KEYS = 80
"""Most keys of an object that are all shown. Records have fewer; a mapping by name may have thousands."""

_NAME = 300
"""Most characters of a key that are shown."""

Handle: TypeAlias = Callable[[str, int], str]
"""Makes the handle for the part of an answer at a JSON pointer (RFC 6901), from an index on."""


class HandleError(LocatedError):
    """A handle for more does not name a part of a kept answer."""


def cut(value: Any, handle: Handle, limit: int = LIMIT_BYTES, pointer: str = "") -> Any:
    """Return a JSON value cut to a number of bytes.

    A list that was cut becomes an object with ``items``, ``total`` and ``more``. A text that was cut becomes one with
    ``text``, ``characters`` and ``more``. A value without room becomes one with only ``more``.
    """
    if encoded_size(value) <= limit:
        return value
    if not isinstance(value, (str, dict, list)):
        return value
    more = handle(pointer, 0)
    room = limit - len(more) - _LEAST  # for the members around what is shown
    if room < _LEAST:
        return {"more": more}
    if isinstance(value, str):
        text = _prefix(value, room)
        return {"text": text, "characters": len(value), "more": handle(pointer, len(text))}
    shown = _entries(value, handle, room, pointer, 0)
    if isinstance(value, list):
        items = [item for _, item in shown]
        whole = {"items": items, "total": len(value), "more": handle(pointer, len(items))}
        return items if len(items) == len(value) else whole
    rest = {"total": len(value), "more": more} if len(shown) < len(value) else {}
    return dict(shown) | rest


def page_of(value: Any, handle: Handle, pointer: str, start: int) -> Any:
    """Return a kept answer's value at a pointer from an item, entry or character on, cut to the limit."""
    room = LIMIT_BYTES - 4 * _LEAST - len(pointer)  # for the members around the page
    if isinstance(value, str):
        text = _prefix(value[start:], room)
        end = start + len(text)
        return {"value": text} | ({"characters": len(value), "more": handle(pointer, end)} if end < len(value) else {})
    if not isinstance(value, (dict, list)):
        return {"value": value}
    shown = _entries(value, handle, room, pointer, start)
    end = start + len(shown)
    answer: dict[str, Any] = {"value": dict(shown) if isinstance(value, dict) else [item for _, item in shown]}
    if start or end < len(value):
        answer |= {"from": start, "total": len(value)}
    return answer | ({"more": handle(pointer, end)} if end < len(value) else {})


def find_value(root: Any, pointer: str) -> Any:
    """Return the part of a JSON value at a pointer, or raise a `HandleError` if it is missing."""
    value = root
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        try:
            if isinstance(value, dict) and key not in value and key.startswith("#"):
                key = list(value)[int(key[1:])]
            value = value[key] if isinstance(value, dict) else value[int(key)] if isinstance(value, list) else None
        except (KeyError, IndexError, ValueError):
            value = None
        if value is None:
            raise HandleError(repr(pointer[:200]), "no such part of the answer", "Use a handle as an answer gave it")
    return value


def encoded_size(value: Any) -> int:
    """Return the bytes of a value as JSON."""
    return len(msgspec.json.encode(value))


def _prefix(text: str, room: int) -> str:
    """Return as much of a text as has room."""
    count = room
    while encoded_size(text[:count]) > room:
        count //= 2
    return text[:count]


def _entries(value: Any, handle: Handle, room: int, pointer: str, start: int) -> list[tuple[str, Any]]:
    """Return the entries of an object or list that have room, from one on, at least one.

    Short entries are shown in full, and long ones are cut to equal sizes: so that an object has all of its members, and
    a list some of its items.
    """
    names = list(value)[start:] if isinstance(value, dict) else range(start, len(value))
    has_all = isinstance(value, dict) and len(value) <= _KEYS
    most = max(_fair_share([encoded_size(value[name]) for name in names], room), 0 if has_all else room // _ENOUGH)
    shown: list[tuple[str, Any]] = []
    for row, name in enumerate(map(str, names), start):
        key = name if len(name) <= _NAME else f"{name[:_NAME]}…"
        # A name that is too long for a handle is replaced by its place, e.g. ``#3``.
        part = name.replace("~", "~0").replace("/", "~1") if len(name) <= _NAME else f"#{row}"
        entry = key, cut(value[names[row - start]], handle, most - len(key) - 4, f"{pointer}/{part}")
        room -= encoded_size(entry)
        if room < 0 and shown:
            break
        shown.append(entry)
    return shown


def _fair_share(sizes: list[int], room: int) -> int:
    """Return the size to which long entries are cut, so that they have room together with the short ones."""
    for left, size in zip(range(len(sizes), 0, -1), sorted(sizes), strict=True):
        if size > room // left:
            return room // left
        room -= size
    return room
