"""Sets of intervals of time, and the steps that figures are averaged over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache, wraps
from itertools import pairwise
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from lightning_perf.trace.columns import BoolArray, Int64Array
from lightning_perf.trace.indexing import BLOCK_ROWS, distinct_rows
from lightning_perf.trace.on_disk import on_disk, release_columns
from lightning_perf.trace.trace import Trace


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
            tables[name] = replace(table, end_ns=on_disk(np.where(outlasts, until, table.end_ns)))
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
    """Return whether each instant of device work lies in a step that averages are over."""
    averaged = averaged_steps(trace)
    return _within(trace.steps.start_ns[averaged], trace.steps.end_ns[averaged], time_ns)


def in_averaged_host_steps(trace: Trace, time_ns: Int64Array) -> BoolArray:
    """Return whether each instant on the host lies in its own mark of a step that averages are over.

    The host runs ahead of the device. It may have issued all work of a step when the step's time begins, which is that
    of its device work.
    """
    averaged = averaged_steps(trace)
    return _within(trace.steps.host_start_ns[averaged], trace.steps.host_end_ns[averaged], time_ns)


def _within(start: Int64Array, end: Int64Array, time_ns: Int64Array) -> BoolArray:
    """Return whether each instant lies in a window, of sorted windows that do not overlap."""
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

    The result must not refer to the recording, or neither is ever freed. Its large columns are on disk.
    """
    kept: WeakKeyDictionary[Trace, T] = WeakKeyDictionary()

    @wraps(function)
    def remembered(trace: Trace) -> T:
        if trace not in kept:
            kept[trace] = on_disk(function(trace))
        return kept[trace]

    return remembered
