"""Small helpers: sums by code, outliers, downsampled series, lists kept as JSON text, and rows by name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.trace.columns import BoolArray, Int64Array
from lightning_perf.trace.indexing import distinct_rows


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Row = TypeVar("_Row", bound=_Named)


def find_row(rows: Iterable[_Row], kind: str, name: str) -> _Row:
    """Find a row of a table by its name, or raise a `KeyError` that lists the names of this kind of row."""
    named = {row.name: row for row in rows}
    if name not in named:
        raise KeyError(f"no {kind} {name!r}; there are {', '.join(named)}")
    return named[name]


def sum_by(code: NDArray[np.integer[Any]], value: Int64Array, size: int) -> Int64Array:
    """Sum the values of each code.

    Example:
        >>> import numpy as np
        >>> sum_by(np.array([2, 0, 2]), np.array([5, 1, 7]), 4).tolist()
        [1, 0, 12, 0]
    """
    total = np.zeros(size, dtype=np.int64)
    np.add.at(total, code, value)
    return total


def largest_codes(group: NDArray[np.integer[Any]], code: NDArray[np.integer[Any]], value: Int64Array) -> dict[int, int]:
    """Return for each group the code with the largest sum of values."""
    first, index = distinct_rows(group, code)
    # In ascending order, so that the largest is written last.
    rows = first[np.argsort(sum_by(index, value, len(first)), kind="stable")]
    return dict(zip(group[rows].tolist(), code[rows].tolist(), strict=True))


SCORE = 3.5
"""Modified z-score beyond which a value is an outlier (Iglewicz and Hoaglin, How to Detect and Handle Outliers,
1993)."""

LEAST_SHARE = 0.10
"""A value within a tenth of the median is no outlier: values that hardly differ have a deviation near zero."""


def outlying(values: Int64Array) -> BoolArray:
    """Find outliers: by their modified z-score, 0.6745 · |x − median| / MAD, and by a tenth of the median."""
    median = float(np.median(values))
    apart = np.abs(values - median)
    outside: BoolArray = (0.6745 * apart > SCORE * float(np.median(apart))) & (apart > LEAST_SHARE * median)
    return outside


class Series(Struct, frozen=True):
    """A step function: each value holds from its time to the next.

    Attributes:
        time_ns: Times, ascending, from the start of the recording.
        value: The value from each time on.
    """

    time_ns: tuple[int, ...]
    value: tuple[int, ...]


def thin(time_ns: Int64Array, value: Int64Array, origin_ns: int, buckets: int = 256) -> Series:
    """Thin a step function to at most four points per bucket: its first, minimum, maximum and last value.

    Drawn with at least as many pixels as buckets, the line is the same (M4 aggregation; Jugel et al., *M4: A
    Visualization-Oriented Time Series Data Aggregation*, VLDB 2014).
    """
    if len(time_ns) > 4 * buckets:
        span = int(time_ns[-1] - time_ns[0]) + 1
        edges = time_ns[0] + np.arange(buckets, dtype=np.int64) * span // buckets
        first = np.unique(np.searchsorted(time_ns, edges, side="left"))
        last = np.append(first[1:], len(time_ns))
        kept = [first, last - 1]
        for begin, end in zip(first.tolist(), last.tolist(), strict=True):
            part = value[begin:end]
            kept.append(np.array([begin + int(part.argmin()), begin + int(part.argmax())]))
        rows = np.unique(np.concatenate(kept))
        time_ns, value = time_ns[rows], value[rows]
    return Series(tuple((time_ns - origin_ns).tolist()), tuple(value.tolist()))


def json_list(text: str) -> list[Any]:
    """Decode a list from JSON text; return an empty one for anything else.

    Example:
        >>> json_list('["float","Scalar"]'), json_list(""), json_list("5"), json_list("[" * 100_000)
        (['float', 'Scalar'], [], [], [])
    """
    try:
        found = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


@lru_cache(maxsize=65536)
def json_shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """Decode a list of shapes or strides. An invalid entry stays as an empty one: the others keep their places.

    Example:
        >>> json_shapes('[[32,3],[],5,[-1]]')
        ((32, 3), (), (), ())
    """
    return tuple(
        tuple(entry) if isinstance(entry, list) and all(type(size) is int and size >= 0 for size in entry) else ()
        for entry in json_list(text)
    )
