"""Strings ─► small numbers, so that a column holds four bytes a row."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from lightning_perf.trace.columns import Int64Array, Thread

__all__ = ["JsonTexts", "Names", "RawTexts", "Threads"]

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


class RawTexts(dict[bytes, int]):
    """Arguments by their raw text. Code 0 is a missing one."""

    def __init__(self) -> None:
        super().__init__({b"": 0})

    def __missing__(self, raw: bytes) -> int:
        self[raw] = code = len(self)
        return code

    def texts(self) -> list[str]:
        """The texts by code."""
        return [raw.decode("utf-8", "replace") for raw in self]

    def products(self) -> Int64Array:
        """By code the product of dimensions (``[16, 1, 1]``); 0 for what is no list of sizes."""
        return np.array([_product(raw) for raw in self], dtype=np.int64)


def _product(raw: bytes) -> int:
    try:
        sizes = msgspec.json.decode(raw, type=list[int])
    except _FAULTS:
        return 0
    if not sizes or len(sizes) > 3 or not all(0 <= size < 2**32 for size in sizes):
        return 0
    return min(math.prod(sizes), 2**62)


class Threads:
    """Threads by (pid, tid) as they stand in the file; the same number as text is the same thread."""

    def __init__(self) -> None:
        self._processes: dict[object, _ThreadsOfProcess] = {}
        self._codes: dict[tuple[str, str], int] = {}
        self._named: dict[tuple[str, str], str] = {}

    def of_process(self, process: object) -> dict[object, int]:
        """The codes of a process's threads, by tid."""
        threads = self._processes.get(process)
        if threads is None:
            self._processes[process] = threads = _ThreadsOfProcess(str(process), self._codes)
        return threads

    def name(self, process: object, thread: object, name: str) -> None:
        """Note the recorded name of a thread."""
        self._named[str(process), str(thread)] = name

    def values_by_code(self) -> tuple[Thread, ...]:
        """The threads by code."""
        return tuple(Thread(*key, name=self._named.get(key, "")) for key in self._codes)


class _ThreadsOfProcess(dict[object, int]):
    def __init__(self, process: str, codes: dict[tuple[str, str], int]) -> None:
        super().__init__()
        self._process = process
        self._codes = codes

    def __missing__(self, thread: object) -> int:
        self[thread] = code = self._codes.setdefault((self._process, str(thread)), len(self._codes))
        return code
