"""Sets of intervals of time, and the steps that figures are averaged over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from lightning_perf.trace.columns import BoolArray, Int64Array
from lightning_perf.trace.trace import Trace


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
        return total

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


def exclusive_ns(sets: Iterable[Intervals], start_ns: Int64Array, end_ns: Int64Array) -> Iterator[Int64Array]:
    """Yield the length that each set adds inside windows to the sets before it, and at the end the uncovered rest."""
    above = EMPTY
    covered = np.zeros_like(start_ns)
    for own in sets:
        if not len(own):
            yield np.zeros_like(covered)
            continue
        above = union(above, own)
        now = above.covered(start_ns, end_ns)
        yield now - covered
        covered = now
    yield end_ns - start_ns - covered


def _pairs(first: NDArray[np.intp], last: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return every (i, j) with ``first[i] <= j < last[i]``, in order, without a loop."""
    count = np.maximum(last - first, 0)
    row = np.repeat(np.arange(len(first)), count)
    offset = np.cumsum(count) - count
    return row, np.arange(len(row)) - offset[row] + first[row]


def averaged_steps(trace: Trace) -> BoolArray:
    """Return the steps that averages are over: the complete ones, or all if the recording holds no complete step."""
    complete = trace.steps.complete
    return complete if complete.any() else np.ones_like(complete)


def averaged_time(trace: Trace) -> Intervals:
    """Return the time of the steps that averages are over."""
    averaged = averaged_steps(trace)
    return merge(trace.steps.start_ns[averaged], trace.steps.end_ns[averaged])


def without_tails(trace: Trace) -> Trace:
    """Cut off the time of the host's ranges after the last averaged step that they reach.

    A range counts in the step that it begins in, and its time after the recorded steps would be added to theirs.
    Lightning's `PyTorchProfiler` ends its last step inside of an optimizer's step, for example.
    """
    counted = averaged_time(trace)
    tables: dict[str, Any] = {}
    for name in ("operators", "annotations", "python", "runtime"):
        table = getattr(trace, name)
        last = np.searchsorted(counted.start_ns, table.end_ns, side="left") - 1
        until = counted.end_ns[last] if len(counted) else table.end_ns
        outlasts = (last >= 0) & (table.start_ns < until) & (until < table.end_ns)
        if outlasts.any():
            tables[name] = replace(table, end_ns=np.where(outlasts, until, table.end_ns))
    if not tables:
        return trace
    cut = replace(trace, **tables)
    cut.__dict__["steps"] = trace.steps  # computed already, from starts and marks
    if not tables.keys() & {"operators", "runtime"}:
        cut.__dict__["links"] = trace.links
    return cut


def share_of(trace: Trace, part: float, whole: float) -> float | None:
    """Return a part of a whole; None if the whole is 0, or unknown because the recording is cut off."""
    return None if trace.problems.lacks_work or not whole else part / whole


def in_averaged_steps(trace: Trace, time_ns: Int64Array) -> BoolArray:
    """Return whether each instant lies in a step that averages are over."""
    steps, averaged = trace.steps, averaged_steps(trace)
    start, end = steps.start_ns[averaged], steps.end_ns[averaged]
    if not len(start):
        return np.zeros(np.shape(time_ns), dtype=np.bool_)
    if len(time_ns) > len(start) and not (time_ns[1:] < time_ns[:-1]).any():
        # A table's column: find the few steps in it instead of each of its rows among the steps.
        change = np.zeros(len(time_ns) + 1, dtype=np.int8)
        first, last = np.searchsorted(time_ns, start), np.searchsorted(time_ns, end)
        filled = first < last
        change[first[filled]] += 1
        change[last[filled]] -= 1
        within: BoolArray = np.cumsum(change[:-1], dtype=np.int8).view(np.bool_)
        return within
    row = np.searchsorted(start, time_ns, side="right") - 1
    inside: BoolArray = (row >= 0) & (time_ns < end[np.maximum(row, 0)])
    return inside


T = TypeVar("T")


def cached_per_trace(function: Callable[[Trace], T]) -> Callable[[Trace], T]:
    """Keep the result of a function of a recording for as long as the recording itself is kept.

    The result must not refer to the recording, or neither is ever freed.
    """
    kept: WeakKeyDictionary[Trace, T] = WeakKeyDictionary()

    @wraps(function)
    def remembered(trace: Trace) -> T:
        if trace not in kept:
            kept[trace] = function(trace)
        return kept[trace]

    return remembered
