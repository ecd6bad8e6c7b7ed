"""Cuts JSON values to a number of bytes, and returns the rest page by page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from lightning_perf.errors import LocatedError

LIMIT_BYTES = 16_384
"""Largest answer, in bytes of UTF-8 JSON. About 4,000 to 6,000 tokens."""

_TIGHTNESS = (
    (40, 8, 4000),
    (20, 6, 2000),
    (10, 5, 1000),
    (8, 4, 600),
    (5, 3, 400),
    (3, 2, 200),
    (1, 1, 100),
    (1, 0, 60),
)
"""Items of each list, levels of nesting, and characters of each text, from generous to tight."""

_ENOUGH = 5
"""Entries that a page should have, even if each of them has to be cut for that."""

_KEYS = 80
"""Most keys of an object that are shown at once. Records have fewer; a mapping by name may have thousands."""

_NAME = 300
"""Most characters of a key that are shown."""


class HandleError(LocatedError):
    """A handle for more does not name a part of a kept answer."""


def cut(value: Any, handle: Callable[[str, int], str], limit: int = LIMIT_BYTES) -> Any:
    """Return a JSON value cut to a number of bytes.

    A list that was cut becomes an object with ``items``, ``total`` and ``more``. A text that was cut becomes one with
    ``text``, ``characters`` and ``more``. A value below too many levels becomes one with only ``more``. `handle` makes
    the handle for the part at a JSON pointer (RFC 6901), from an index on.
    """
    shown = value
    for items, levels, characters in _TIGHTNESS:
        shown = _Cutter(items, levels, characters, handle).cut(value, "", 0)
        if encoded_size(shown) <= limit:
            return shown
    return {"more": handle("", 0)} if isinstance(value, (dict, list)) else shown


def page_of(value: Any, handle: Callable[[str, int], str], pointer: str, start: int) -> Any:
    """Return a kept answer's value at a pointer from an item, entry or character on, cut to the limit."""
    room = LIMIT_BYTES - 400  # for the members around the page
    if isinstance(value, str):
        return _page_of_text(value, handle, pointer, start, room)
    if not isinstance(value, (dict, list)):
        return {"value": value}
    entries = list(value.items()) if isinstance(value, dict) else [(str(row), item) for row, item in enumerate(value)]
    rest = entries[start:]
    shown: list[tuple[str, Any]] = []
    for items, levels, characters in _TIGHTNESS:
        cutter = _Cutter(items, levels, characters, handle)
        shown, left = [], room
        for row, (name, item) in enumerate(rest, start):
            part = (_short(name), cutter.cut(item, _join(pointer, name, row), 1))
            left -= encoded_size(part) + 1
            if left < 0:
                break
            shown.append(part)
        if len(shown) == len(rest) or len(shown) >= _ENOUGH:
            break
    if not shown:
        shown = [(_short(name), {"more": handle(_join(pointer, name, start), 0)}) for name, _ in rest[:1]]
    answer: dict[str, Any] = {"value": dict(shown) if isinstance(value, dict) else [item for _, item in shown]}
    if start or len(shown) < len(rest):
        answer |= {"from": start, "total": len(entries)}
    if len(shown) < len(rest):
        answer["more"] = handle(pointer, start + len(shown))
    return answer


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


def _page_of_text(text: str, handle: Callable[[str, int], str], pointer: str, start: int, room: int) -> dict[str, Any]:
    count = room
    while encoded_size(text[start : start + count]) > room:
        count //= 2
    answer: dict[str, Any] = {"value": text[start : start + count]}
    if start + count < len(text):
        answer |= {"characters": len(text), "more": handle(pointer, start + count)}
    return answer


def _join(pointer: str, name: str, row: int) -> str:
    """Return the pointer of a member. A name that is too long for a handle is replaced by its place, as ``#3``."""
    part = name if len(name) <= _NAME else f"#{row}"
    return f"{pointer}/{part.replace('~', '~0').replace('/', '~1')}"


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[:_NAME]}…"


class _Cutter:
    def __init__(self, items: int, levels: int, characters: int, handle: Callable[[str, int], str]) -> None:
        self._items, self._levels, self._characters, self._handle = items, levels, characters, handle

    def cut(self, value: Any, pointer: str, level: int) -> Any:
        if isinstance(value, str):
            if len(value) <= self._characters:
                return value
            more = self._handle(pointer, self._characters)
            return {"text": value[: self._characters], "characters": len(value), "more": more}
        if not isinstance(value, (dict, list)) or not value:
            return value
        if level > self._levels:
            return {"more": self._handle(pointer, 0)}
        if isinstance(value, dict):
            shown = {
                _short(name): self.cut(item, _join(pointer, name, row), level + 1)
                for row, (name, item) in enumerate(list(value.items())[:_KEYS])
            }
            if len(shown) < len(value):
                shown |= {"total": len(value), "more": self._handle(pointer, 0)}
            return shown
        rows = [self.cut(item, f"{pointer}/{row}", level + 1) for row, item in enumerate(value[: self._items])]
        if len(rows) == len(value):
            return rows
        return {"items": rows, "total": len(value), "more": self._handle(pointer, len(rows))}
