"""Fast lookups over columns: distinct values, rows in time order, and the intervals that contain others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lightning_perf.trace.columns import NO_ROW, BoolArray, Int32Array, Int64Array, Spans

_Value = TypeVar("_Value", bound=np.generic)

TABLE_ROWS = 1 << 20
"""Codes in a range of this size are always looked up in a table."""

BLOCK_ROWS = 1 << 18
"""Rows that are worked on at once, where the memory is to depend on them and not on the table."""


def blocks(rows: int) -> Iterator[slice]:
    """Cut a number of rows into blocks of `BLOCK_ROWS`."""
    return (slice(begin, begin + BLOCK_ROWS) for begin in range(0, rows, BLOCK_ROWS))


def distinct(values: NDArray[np.integer[Any]]) -> tuple[Int64Array, Int64Array]:
    """Return the same as ``np.unique(values, return_inverse=True)``, without sorting if a table can be used.

    The values are codes: non-negative integers. The largest should not be much larger than their number.
    """
    if not len(values):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    least, greatest = int(values.min()), int(values.max())
    span = greatest - least + 1
    if span > max(TABLE_ROWS, 4 * len(values)):
        found, place = np.unique(values, return_inverse=True)
        return found.astype(np.int64), place
    used = np.zeros(span, dtype=np.bool_)
    for block in blocks(len(values)):
        used[values[block] - np.int64(least)] = True
    found = np.flatnonzero(used)
    place_of = np.zeros(span, dtype=np.int64)
    place_of[found] = np.arange(len(found))
    place = np.empty(len(values), dtype=np.int64)
    for block in blocks(len(values)):
        place[block] = place_of[values[block] - np.int64(least)]
    return found + least, place


def distinct_rows(*columns: NDArray[np.integer[Any]]) -> tuple[Int64Array, Int64Array]:
    """Find the distinct rows of several columns.

    Returns the place of the first occurrence of each, in the order of their values (the first column's first). Also,
    for each row, its number among the distinct ones.
    """
    _, place = distinct(columns[0])
    for column in columns[1:]:
        values, at = distinct(column)
        _, place = distinct(place * len(values) + at)
    first = np.zeros(int(place.max(initial=-1)) + 1, dtype=np.int64)
    first[place[::-1]] = np.arange(len(place) - 1, -1, -1)
    return first, place


def at_rows(column: NDArray[_Value], rows: NDArray[np.integer[Any]], missing: float) -> NDArray[_Value]:
    """Return the values of a column at some rows; `missing` where there is no row."""
    if not len(column):
        return np.full(len(rows), missing, dtype=column.dtype)
    found: NDArray[_Value] = column[rows]
    found[rows == NO_ROW] = missing
    return found


def used_codes(codes: NDArray[np.integer[Any]]) -> list[int]:
    """Return the codes in a column, ascending."""
    found: list[int] = np.flatnonzero(np.bincount(codes)).tolist()
    return found


def parent_rows(spans: Spans) -> Int32Array:
    """Return for each interval the row of the innermost other interval on its thread that contains it.

    In table order (start ascending, longer first), that is the nearest earlier row of the thread with an end that is
    not earlier. This "previous greater element" query is answered for all rows at once by pointer doubling. Between a
    row and its candidate, all ends are earlier than the row's own. So a candidate that ends too early is replaced by
    its own candidate, and every round at least doubles the distance covered.
    """
    order = np.argsort(spans.thread, kind="stable").astype(np.int32)
    ends = spans.end_ns[order]
    candidate = np.arange(-1, len(order) - 1, dtype=np.int32)
    candidate[1:][np.diff(spans.thread[order]) != 0] = NO_ROW
    open_ = np.flatnonzero(ends[:-1] < ends[1:]) + 1
    open_ = open_[candidate[open_] >= 0]
    while len(open_):
        candidate[open_] = candidate[candidate[open_]]
        open_ = open_[candidate[open_] >= 0]
        open_ = open_[ends[candidate[open_]] < ends[open_]]
    del ends
    parents = np.empty(len(order), dtype=np.int32)
    for block in blocks(len(order)):
        above = candidate[block]
        parents[order[block]] = np.where(above >= 0, order[above], NO_ROW)
    return parents


def enclosing_rows(inner: Spans, outer: Spans, outer_parents: Int32Array) -> Int32Array:
    """Return for each interval of one table the innermost interval of another that contains it on its thread."""
    found = np.full(len(inner), NO_ROW, dtype=np.int32)
    for thread in used_codes(inner.thread):
        rows = np.flatnonzero(inner.thread == thread)
        places = np.flatnonzero(outer.thread == thread)
        if not len(places):
            continue
        starts, ends = inner.start_ns[rows], inner.end_ns[rows]
        last = np.searchsorted(outer.start_ns[places], starts, side="right") - 1
        at = np.where(last >= 0, places[np.maximum(last, 0)], NO_ROW).astype(np.int32)
        # Upwards through the parents until the interval fits: as many rounds as operators are nested.
        open_ = np.flatnonzero(at >= 0)
        open_ = open_[outer.end_ns[at[open_]] < ends[open_]]
        while len(open_):
            at[open_] = outer_parents[at[open_]]
            open_ = open_[at[open_] >= 0]
            open_ = open_[outer.end_ns[at[open_]] < ends[open_]]
        found[rows] = at
    return found


def innermost_marked(parents: Int32Array, rows: NDArray[np.integer[Any]], marked: BoolArray) -> Int64Array:
    """Return the innermost marked interval at or around each row of a table; `NO_ROW` without one."""
    result = np.full(len(rows), NO_ROW, dtype=np.int64)
    if not marked.any():
        return result
    for block in blocks(len(rows)):
        found = rows[block].astype(np.int64)
        open_ = np.flatnonzero((found != NO_ROW) & ~marked[found])
        while len(open_):  # as many rounds as intervals are nested
            found[open_] = parents[found[open_]]
            open_ = open_[found[open_] != NO_ROW]
            open_ = open_[~marked[found[open_]]]
        result[block] = found
    return result


def self_ns(spans: Spans, parents: Int32Array) -> Int64Array:
    """Return the time of each interval outside those directly inside it."""
    own = spans.duration_ns
    for block in blocks(len(own)):
        nested = parents[block] >= 0
        np.subtract.at(own, parents[block][nested], (spans.end_ns[block] - spans.start_ns[block])[nested])
    # Siblings that overlap (a thread id used twice) would make it negative.
    return np.maximum(own, 0, out=own)


def with_children(own: Int64Array, parents: NDArray[np.integer[Any]]) -> Int64Array:
    """Return each row's value plus those of all rows inside it."""
    total = np.zeros_like(own)
    at = np.flatnonzero(own).astype(parents.dtype)
    amount = own[at]
    while len(at):  # as many rounds as rows are nested
        np.add.at(total, at, amount)
        above = parents[at]
        inside = above >= 0
        at, amount = above[inside], amount[inside]
    return total


def time_order(start_ns: Int64Array, end_ns: Int64Array) -> NDArray[np.intp] | None:
    """Return the order by start, of equal starts the longer first; None if the rows are in that order already.

    Recordings are nearly sorted, which makes a stable sort fast. Only rows with equal starts are then compared again.
    """
    order = np.argsort(start_ns, kind="stable") if (start_ns[1:] < start_ns[:-1]).any() else None
    tied, wrong = np.zeros(len(start_ns), dtype=np.bool_), False
    for block in blocks(len(start_ns)):
        pairs = slice(block.start, block.stop + 1)  # each row and the next one
        rows = pairs if order is None else order[pairs]
        starts, ends = start_ns[rows], end_ns[rows]
        same = starts[1:] == starts[:-1]
        tied[block][: len(same)] |= same
        tied[block.start + 1 : block.stop + 1] |= same
        wrong |= bool((same & (ends[1:] > ends[:-1])).any())
    if not wrong:
        return order
    places = np.flatnonzero(tied)
    order = np.arange(len(start_ns)) if order is None else order
    rows = order[places]
    order[places] = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]
    return order
