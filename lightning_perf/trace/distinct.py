"""The distinct values of columns of codes, and which of them each row has."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_perf.trace.columns import Int64Array

__all__ = ["distinct", "distinct_rows", "used_codes"]

_TABLE_ROWS = 1 << 20


def distinct(values: NDArray[np.integer[Any]]) -> tuple[Int64Array, Int64Array]:
    """What ``np.unique(values, return_inverse=True)`` returns, without sorting where a table will do.

    Args:
        values: Codes: integers, of which the largest is not much larger than they are many.

    Returns:
        The distinct values, ascending, and for each row the place of its value among them.

    Example:
        >>> values, place = distinct(np.array([7, 3, 7, 4]))
        >>> values.tolist(), place.tolist()
        ([3, 4, 7], [2, 0, 2, 1])
    """
    if not len(values):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    least, greatest = int(values.min()), int(values.max())
    span = greatest - least + 1
    if span > max(_TABLE_ROWS, 4 * len(values)):
        found, place = np.unique(values, return_inverse=True)
        return found.astype(np.int64), place
    at = values.astype(np.int64)
    at -= least
    used = np.zeros(span, dtype=np.bool_)
    used[at] = True
    found = np.flatnonzero(used)
    place_of = np.zeros(span, dtype=np.int64)
    place_of[found] = np.arange(len(found))
    return found + least, place_of[at]


def distinct_rows(*columns: NDArray[np.integer[Any]]) -> tuple[Int64Array, Int64Array]:
    """The distinct rows of several columns.

    Args:
        columns: Columns of codes, of equal length.

    Returns:
        For each distinct row the place where it first stands, in the order of its values (the first column's first);
        and for each row its number among the distinct ones.

    Example:
        >>> first, place = distinct_rows(np.array([5, 2, 5, 2]), np.array([1, 9, 1, 0]))
        >>> first.tolist(), place.tolist()
        ([3, 1, 0], [2, 1, 2, 0])
    """
    _, place = distinct(columns[0])
    for column in columns[1:]:
        values, at = distinct(column)
        _, place = distinct(place * len(values) + at)
    first = np.zeros(int(place.max(initial=-1)) + 1, dtype=np.int64)
    first[place[::-1]] = np.arange(len(place) - 1, -1, -1)
    return first, place


def used_codes(codes: NDArray[np.integer[Any]]) -> list[int]:
    """The codes that stand in a column, ascending.

    Args:
        codes: Codes into one of the lists of a `Trace`: none is negative, and none is large.

    Example:
        >>> used_codes(np.array([7, 3, 7, 4]))
        [3, 4, 7]
    """
    found: list[int] = np.flatnonzero(np.bincount(codes)).tolist()
    return found
