"""Strings ─► small numbers, so that a column holds four bytes a row."""

from __future__ import annotations

import msgspec

from lightning_perf.trace.columns import Thread

__all__ = ["JsonTexts", "Names", "Products", "Threads"]

_FAULTS = (msgspec.MsgspecError, ValueError, RecursionError)


class Names(dict[str, int]):
    """Names in the order they were first seen: ``names[text]`` is its code."""

    def __missing__(self, name: str) -> int:
        self[name] = code = len(self)
        return code

    def strings(self) -> tuple[str, ...]:
        """The names by code."""
        return tuple(self)


class JsonTexts(dict[bytes, int]):
    """Lists as JSON text, by their raw text; whatever its blanks, one list has one code. Code 0 is the empty one."""

    def __init__(self) -> None:
        super().__init__({b"": 0})
        self._codes = {"": 0, "[]": 0, "null": 0}
        self._texts = [""]

    def __missing__(self, raw: bytes) -> int:
        try:
            text = msgspec.json.encode(msgspec.json.decode(raw)).decode()
        except _FAULTS:
            text = ""
        code = self._codes.get(text)
        if code is None:
            self._codes[text] = code = len(self._texts)
            self._texts.append(text)
        self[raw] = code
        return code

    def strings(self) -> tuple[str, ...]:
        """The texts by code."""
        return tuple(self._texts)


class Products(dict[bytes, int]):
    """Products of dimensions (``[16, 1, 1]``), by their raw text; 0 for what is not a list of numbers."""

    def __init__(self) -> None:
        super().__init__({b"": 0})

    def __missing__(self, raw: bytes) -> int:
        product = 0
        try:
            sizes = msgspec.json.decode(raw, type=list[int])
        except _FAULTS:
            sizes = []
        if sizes and all(0 <= size < 2**32 for size in sizes):
            product = 1
            for size in sizes:
                product *= size
        self[raw] = min(product, 2**62)
        return self[raw]


class Threads(dict[tuple[object, object], int]):
    """Threads by (pid, tid) as they stand in the file; the same number as text is the same thread."""

    def __init__(self) -> None:
        super().__init__()
        self._codes: dict[tuple[str, str], int] = {}
        self._named: dict[tuple[str, str], str] = {}

    def __missing__(self, key: tuple[object, object]) -> int:
        text = (str(key[0]), str(key[1]))
        self[key] = code = self._codes.setdefault(text, len(self._codes))
        return code

    def name(self, process: object, thread: object, name: str) -> None:
        """Note the recorded name of a thread."""
        self._named[str(process), str(thread)] = name

    def values_by_code(self) -> tuple[Thread, ...]:
        """The threads by code."""
        return tuple(Thread(*key, name=self._named.get(key, "")) for key in self._codes)
