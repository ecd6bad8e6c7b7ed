"""Turns the values of a file into columns: exact times, numbers with defaults, interned strings."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from lightning_perf.trace.columns import Int64Array, Thread, pack_triple
from lightning_perf.trace.on_disk import ColumnFile, is_large
from lightning_perf.trace.text.events import FAULTS

_Text = TypeVar("_Text", str, bytes)

UNREADABLE_NS = int(np.iinfo(np.int64).min)
"""Marks a time that is missing or beyond 2**61 ns (73 years on either side of the clock's origin)."""

FLOAT_EXACT_BELOW_US = 2.0**43
_LIMIT_NS = 2**61
_LIMIT_US = _LIMIT_NS // 1000
_BLOCK_ROWS = 1 << 18


class InexactTimeError(ValueError):
    """Float64 does not hold these times to the nanosecond. Read them as decimals."""


def nanoseconds(microseconds: NDArray[np.float64]) -> Int64Array:
    """Convert microseconds: integer part × 1000 plus the rounded fraction (never ``float × 1000``).

    A missing time, or one out of range, is `UNREADABLE_NS`.
    """
    result = np.empty(len(microseconds), dtype=np.int64)
    for begin in range(0, len(microseconds), _BLOCK_ROWS):
        values = microseconds[begin : begin + _BLOCK_ROWS]
        size = np.abs(values)
        readable = size < _LIMIT_US
        if not readable.all():
            values, size = np.where(readable, values, 0.0), np.where(readable, size, 0.0)
        if size.max() >= FLOAT_EXACT_BELOW_US:
            raise InexactTimeError
        whole = np.floor(values)
        ns = whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)
        result[begin : begin + _BLOCK_ROWS] = np.where(readable, ns, UNREADABLE_NS)
    return result


def decimal_ns(microseconds: Decimal | int) -> int:
    """Convert one time that was read as an integer or a decimal; `UNREADABLE_NS` if out of range."""
    if not -_LIMIT_US < microseconds < _LIMIT_US:
        return UNREADABLE_NS
    return round(microseconds * 1000)


_NOT_IN_64_BITS = (TypeError, OverflowError)
_LIMITS = {"i": 2**31, "q": 2**63}
_TIMES, _DURATIONS = "times", "durations"


class Column:
    """The numbers of a column. As long as all are equal, one of them stands for all rows.

    Most recordings lack the facts of a few columns, such as shapes. Those of all rows would be a third of the memory.
    Many numbers go to a file, so that the memory of a reader does not grow with the trace.
    """

    def __init__(self, code: str) -> None:
        self.code = code
        self.rows = 0
        self._numbers: array[Any] = array(code)
        self._first: Any = None
        self._file = ColumnFile()

    def add(self, values: list[Any]) -> None:
        """Add numbers. If one of them does not fit, nothing is added."""
        if self._is_constant():
            if not self.rows and values:
                self._numbers, self._first = array(self.code, values[:1]), values[0]
            if values.count(self._first) == len(values):
                self.rows += len(values)
                return
            self._numbers *= self.rows
        self._numbers.fromlist(values)
        self._count(len(values))

    def extend(self, numbers: array[Any], rows: int) -> None:
        """Add the rows of another column, by its numbers."""
        if not self.rows:
            self._numbers, self._first = numbers, numbers[0]
        elif len(numbers) > 1 or not self._is_constant() or numbers.tobytes() != self._numbers.tobytes():
            if self._is_constant():
                self._numbers *= self.rows
            self._numbers += numbers if len(numbers) == rows else numbers * rows
        self._count(rows)

    def numbers(self) -> NDArray[Any]:
        """Return the numbers, without a copy if all of them are in the file or none. One may stand for all rows."""
        rest, dtype = np.asarray(self._numbers), np.dtype(self.code)
        if not self._file.size:
            return rest
        if self._file.append(rest.view(np.uint8).data):
            self._numbers = array(self.code)
            return self._file.numbers(dtype)
        return np.concatenate((self._file.numbers(dtype), rest))

    def array(self) -> NDArray[Any]:
        """Return the number of each row. Those that stand for all rows cannot be written."""
        numbers = self.numbers()
        return numbers if len(numbers) == self.rows else np.broadcast_to(numbers, self.rows)

    def _is_constant(self) -> bool:
        return len(self._numbers) < 2 and not self._file.size

    def _count(self, rows: int) -> None:
        self.rows += rows
        numbers = self._numbers
        if is_large(len(numbers) * numbers.itemsize) and self._file.append(memoryview(numbers)):
            self._numbers = array(self.code)


class Rows:
    """The columns of one kind of event.

    Args:
        exact: Whether times come as integers and decimals and are kept in nanoseconds, not as float microseconds.
    """

    def __init__(self, exact: bool, **columns: str) -> None:
        self._exact = exact
        times = "q" if exact else "d"
        self.columns = {name: Column(code) for name, code in {_TIMES: times, _DURATIONS: times, **columns}.items()}

    def __len__(self) -> int:
        return self.columns[_TIMES].rows

    def add_times(self, times: list[Any], durations: list[Any]) -> None:
        """Add microseconds. None, and values that are no time of 64 bits, are kept as unreadable."""
        for name, values in ((_TIMES, times), (_DURATIONS, durations)):
            if self._exact:
                self.add_codes(name, [UNREADABLE_NS if value is None else decimal_ns(value) for value in values])
            else:
                self.add_floats(name, values)

    def add_codes(self, column: str, codes: list[int]) -> None:
        """Add numbers that are known to fit."""
        self.columns[column].add(codes)

    def add_integers(self, column: str, values: list[Any], default: int) -> None:
        """Add numbers from the file. Text of digits counts, anything else becomes the default."""
        target = self.columns[column]
        try:
            target.add(values)
        except _NOT_IN_64_BITS:
            limit = _LIMITS[target.code]
            clean = [_integer(value, default) for value in values]
            target.add([value if -limit <= value < limit else default for value in clean])

    def add_floats(self, column: str, values: list[Any]) -> None:
        """Add numbers from the file. Anything else becomes nan."""
        try:
            self.columns[column].add(values)
        except _NOT_IN_64_BITS:
            self.columns[column].add([_float(value) for value in values])

    def encoded(self) -> dict[str, bytes]:
        """Return all columns as bytes, for `extend` in another process."""
        return {name: column.numbers().tobytes() for name, column in self.columns.items()}

    def extend(self, rows: int, encoded: dict[str, bytes], codes: dict[str, NDArray[np.int32]]) -> None:
        """Add the rows of another process. `codes` has the new code of each old one, for columns of codes."""
        for name, column in self.columns.items():
            data = encoded[name]
            numbers = array(column.code)
            numbers.frombytes(codes[name][np.frombuffer(data, np.int32)].tobytes() if name in codes else data)
            column.extend(numbers, rows)

    def take_times(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the finished times and durations."""
        return self.take(_TIMES), self.take(_DURATIONS)

    def take(self, column: str) -> NDArray[Any]:
        """Return a finished column."""
        return self.columns.pop(column).array()


def _float(value: Any) -> float:
    if isinstance(value, int | float | Decimal):
        try:
            return float(value)
        except OverflowError:
            pass
    return float("nan")


def _integer(value: Any, default: int) -> int:
    if isinstance(value, str):
        # "stream 7" of the recordings of 2021, "0x1f" of ROCm, plain digits.
        try:
            return int(value.strip().rsplit(" ", 1)[-1][:40], 0)
        except ValueError:
            return default
    if isinstance(value, float):
        return int(value) if np.isfinite(value) else default
    return value if isinstance(value, int) else default


class Codes(dict[_Text, int]):
    """Texts in the order they were first seen: ``codes[text]`` is the code of one."""

    def __missing__(self, text: _Text) -> int:
        self[text] = code = len(self)
        return code

    def strings(self) -> tuple[_Text, ...]:
        """Return the texts by code."""
        return tuple(self)

    def codes(self, texts: Sequence[_Text]) -> list[int]:
        """Return the codes of texts that another process found, in its order."""
        return [self[text] for text in texts]


Names: TypeAlias = Codes[str]


class JsonTexts(dict[bytes, int]):
    """Lists as JSON text, by their raw text. Equal lists have one code, whatever their blanks. The empty one is 0."""

    def __init__(self) -> None:
        super().__init__({b"": 0})
        self._codes = {"": 0, "[]": 0, "null": 0}
        self._texts = [""]

    def __missing__(self, raw: bytes) -> int:
        try:
            text = msgspec.json.encode(msgspec.json.decode(raw)).decode()
        except FAULTS:
            text = ""
        self[raw] = code = self._code(text)
        return code

    def _code(self, text: str) -> int:
        code = self._codes.get(text)
        if code is None:
            self._codes[text] = code = len(self._texts)
            self._texts.append(text)
        return code

    def strings(self) -> tuple[str, ...]:
        """Return the texts by code."""
        return tuple(self._texts)

    def codes(self, texts: Sequence[str]) -> list[int]:
        """Return the codes of texts that another process found, in its order."""
        return [self._code(text) for text in texts]


class RawTexts(Codes[bytes]):
    """Arguments by their raw text. Code 0 is a missing one."""

    def __init__(self) -> None:
        super().__init__({b"": 0})

    def texts(self) -> list[str]:
        """Return the texts by code."""
        return [raw.decode("utf-8", "replace") for raw in self]

    def products(self) -> Int64Array:
        """Return by code the product of dimensions (``[16, 1, 1]``); 0 for anything that is no list of sizes."""
        return np.array([min(math.prod(sizes), 2**62) if (sizes := _sizes(raw)) else 0 for raw in self], dtype=np.int64)

    def triples(self) -> Int64Array:
        """Return by code the dimensions in one number, for `unpack_triple`; 0 if they are not recorded."""
        return np.array([pack_triple(_sizes(raw)) for raw in self], dtype=np.int64)


def _sizes(raw: bytes) -> list[int]:
    """Return up to three dimensions; none for anything that is no list of sizes."""
    try:
        sizes = msgspec.json.decode(raw, type=list[int])
    except FAULTS:
        return []
    return sizes if len(sizes) <= 3 and all(0 <= size < 2**32 for size in sizes) else []


class Threads:
    """Threads by (pid, tid) as the file writes them. The same number as text is the same thread."""

    def __init__(self) -> None:
        self._processes: dict[object, _ThreadsOfProcess] = {}
        self._codes: dict[tuple[str, str], int] = {}
        self._named: dict[tuple[str, str], str] = {}

    def of_process(self, process: object) -> dict[object, int]:
        """Return the codes of a process's threads, by tid."""
        threads = self._processes.get(process)
        if threads is None:
            self._processes[process] = threads = _ThreadsOfProcess(str(process), self._codes)
        return threads

    def has_process(self, process: object) -> bool:
        """Return whether a thread of this process has events."""
        return any(str(process) == of for of, _ in self._codes)

    def name(self, process: object, thread: object, name: str) -> None:
        """Note the recorded name of a thread."""
        self._named[str(process), str(thread)] = name

    def strings(self) -> tuple[tuple[str, str], ...]:
        """Return the process and thread by code."""
        return tuple(self._codes)

    def codes(self, threads: Sequence[tuple[str, str]]) -> list[int]:
        """Return the codes of threads that another process found, in its order."""
        return [self.of_process(process)[thread] for process, thread in threads]

    def names(self) -> list[tuple[str, str, str]]:
        """Return process, thread and name of each named thread, for `name` in another process."""
        return [(*key, name) for key, name in self._named.items()]

    def values_by_code(self) -> tuple[Thread, ...]:
        """Return the threads by code."""
        return tuple(Thread(*key, name=self._named.get(key, "")) for key in self._codes)


class _ThreadsOfProcess(dict[object, int]):
    def __init__(self, process: str, codes: dict[tuple[str, str], int]) -> None:
        super().__init__()
        self._process = process
        self._codes = codes

    def __missing__(self, thread: object) -> int:
        self[thread] = code = self._codes.setdefault((self._process, str(thread)), len(self._codes))
        return code
