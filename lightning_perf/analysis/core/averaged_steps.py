"""The steps that averages are over, the events in them, and values that are computed once per trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from msgspec.structs import replace

from lightning_perf.analysis.core.intervals import Intervals, merge
from lightning_perf.trace.columns import BoolArray, Int64Array
from lightning_perf.trace.on_disk import on_disk
from lightning_perf.trace.trace import Trace


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

    The result must not refer to the recording, or neither is ever freed. Its large columns are on disk.
    """
    kept: WeakKeyDictionary[Trace, T] = WeakKeyDictionary()

    @wraps(function)
    def remembered(trace: Trace) -> T:
        if trace not in kept:
            kept[trace] = on_disk(function(trace))
        return kept[trace]

    return remembered
