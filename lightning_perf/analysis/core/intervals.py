"""Sets of time: merge, subtract and intersect intervals, and measure them inside windows.

A set is kept as disjoint, non-touching, non-empty, ascending, half-open intervals, so that length and membership are
binary searches. All times are ``int64`` nanoseconds, so nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.trace.columns import BoolArray, Int64Array
from lightning_perf.trace.indexing import BLOCK_ROWS
from lightning_perf.trace.on_disk import on_disk, release_columns


class Intervals(Struct, frozen=True, eq=False, dict=True):
    """A set of instants as disjoint half-open intervals. Build one with `merge`.

    Attributes:
        start_ns: Begin of each interval, strictly ascending.
        end_ns: End of each interval: after its begin, before the next begin.
    """

    start_ns: Int64Array
    end_ns: Int64Array

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def length_ns(self) -> int:
        """Total length of the set."""
        return int((self.end_ns - self.start_ns).sum())

    @cached_property
    def _length_before(self) -> Int64Array:
        """Length of the set before the start of each interval. The last entry is the whole length."""
        total = np.zeros(len(self) + 1, dtype=np.int64)
        np.cumsum(self.end_ns - self.start_ns, out=total[1:])
        return on_disk(total)

    def covered_before(self, time_ns: Int64Array) -> Int64Array:
        """Length of the part of the set that lies before each instant."""
        if not len(self):
            return np.zeros_like(time_ns)
        row = np.searchsorted(self.start_ns, time_ns, side="right")
        beyond = self.end_ns[row - 1] - time_ns  # row 0 wraps to the last interval; masked out below
        np.maximum(beyond, 0, out=beyond)
        beyond[row == 0] = 0
        covered: Int64Array = self._length_before[row] - beyond
        return covered

    def covered(self, window_start_ns: Int64Array, window_end_ns: Int64Array) -> Int64Array:
        """Length of the set inside each window."""
        return self.covered_before(window_end_ns) - self.covered_before(window_start_ns)

    def between(self, begin_ns: np.int64, end_ns: np.int64) -> Intervals:
        """Return the intervals that have any part between two instants, whole and without a copy."""
        first, last = np.searchsorted(self.end_ns, begin_ns, side="right"), np.searchsorted(self.start_ns, end_ns)
        return Intervals(self.start_ns[first:last], self.end_ns[first:last])

    def contains(self, time_ns: Int64Array) -> BoolArray:
        """Whether each instant lies in the set."""
        if not len(self):
            return np.zeros(np.shape(time_ns), dtype=np.bool_)
        row = np.searchsorted(self.start_ns, time_ns, side="right")
        inside: BoolArray = (row > 0) & (self.end_ns[row - 1] > time_ns)
        return inside


EMPTY = Intervals(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
"""The empty set."""


def merge(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> Intervals:
    """Return the set of instants that any of the intervals covers. Ascending begins are fastest."""
    start = np.asarray(start_ns, dtype=np.int64)
    end = np.asarray(end_ns, dtype=np.int64)
    filled = end > start
    if not filled.all():
        start, end = start[filled], end[filled]
    if not len(start):
        return EMPTY
    return _merged(_ascending(start), _ascending(end))


def _merged(start: Int64Array, end: Int64Array) -> Intervals:
    """Merge starts and ends that are each sorted on their own, at least one of each.

    That is faster than sorting them together, and gives the same set. Before the start at place i, exactly i intervals
    have begun. All of them have ended if i ends lie before it.
    """
    opens = np.empty(len(start) + 1, dtype=np.bool_)
    opens[0] = opens[-1] = True
    np.greater(start[1:], end[:-1], out=opens[1:-1])
    return Intervals(start[opens[:-1]], end[opens[1:]])


def _ascending(times: Int64Array) -> Int64Array:
    # Recordings are nearly in order, which makes a stable sort fast.
    return np.sort(times, kind="stable") if (times[1:] < times[:-1]).any() else times


def union(*sets: Intervals) -> Intervals:
    """Return the instants that lie in any of the sets."""
    filled = [s for s in sets if len(s)]
    if len(filled) < 2:
        return filled[0] if filled else EMPTY
    start, end = np.concatenate([s.start_ns for s in filled]), np.concatenate([s.end_ns for s in filled])
    start.sort(kind="stable")  # a merge: they are a few ascending runs
    end.sort(kind="stable")
    return _merged(start, end)


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return the instants that lie in both sets."""
    if len(a) > len(b):
        a, b = b, a
    if not len(a):
        return EMPTY
    # Interval i of the smaller set meets the run first[i]:last[i] of the other's.
    first = np.searchsorted(b.end_ns, a.start_ns, side="right")
    last = np.searchsorted(b.start_ns, a.end_ns, side="left")
    row_a, row_b = _pairs(first, last)
    # Two sets without touching intervals have an intersection without any.
    return Intervals(np.maximum(a.start_ns[row_a], b.start_ns[row_b]), np.minimum(a.end_ns[row_a], b.end_ns[row_b]))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return the instants of ``a`` that do not lie in ``b``."""
    if not len(a) or not len(b):
        return a
    gaps = Intervals(
        np.concatenate(([np.iinfo(np.int64).min], b.end_ns)), np.concatenate((b.start_ns, [np.iinfo(np.int64).max]))
    )
    return intersect(a, gaps)


def exclusive_ns(
    sets: Iterable[Intervals], start_ns: Int64Array, end_ns: Int64Array, dtype: type[np.signedinteger[Any]] = np.int64
) -> list[NDArray[Any]]:
    """Return the length that each set adds inside windows to the sets before it, and at the end the uncovered rest.

    Windows are in time order and do not overlap. A block of time is measured after another, which bounds the memory.
    The type has to hold the length of each window.
    """
    sets = tuple(sets)
    times: list[NDArray[Any]] = [np.zeros(len(start_ns), dtype) for _ in range(len(sets) + 1)]
    for begin, end in _blocks_of_time(sets, start_ns, end_ns):
        rows = slice(np.searchsorted(end_ns, begin, side="right"), np.searchsorted(start_ns, end, side="left"))
        start, until = np.clip(start_ns[rows], begin, end), np.clip(end_ns[rows], begin, end)
        above, covered = EMPTY, np.zeros_like(start)
        for own, time_ns in zip(sets, times, strict=False):
            if not len(within := own.between(begin, end)):
                continue
            above = union(above, within)
            now = above.covered(start, until)
            time_ns[rows] += now - covered
            covered = now
        times[-1][rows] += until - start - covered
        release_columns()
    return times


def _blocks_of_time(
    sets: Sequence[Intervals], start_ns: Int64Array, end_ns: Int64Array
) -> Iterator[tuple[np.int64, np.int64]]:
    if not len(start_ns):
        return iter(())
    largest = max((each.start_ns for each in sets), key=len, default=start_ns)
    cuts = [cut for cut in largest[BLOCK_ROWS::BLOCK_ROWS] if start_ns[0] < cut < end_ns[-1]]
    return pairwise((start_ns[0], *cuts, end_ns[-1]))


def _pairs(first: NDArray[np.intp], last: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return every (i, j) with ``first[i] <= j < last[i]``, in order, without a loop."""
    count = np.maximum(last - first, 0)
    row = np.repeat(np.arange(len(first)), count)
    offset = np.cumsum(count) - count
    return row, np.arange(len(row)) - offset[row] + first[row]
