"""Which interval directly contains which, by thread: vectorised, for millions of rows."""

from __future__ import annotations

import numpy as np

from lightning_perf.trace.columns import NO_ROW, Int32Array, Int64Array, Spans
from lightning_perf.trace.distinct import used_codes

__all__ = ["enclosing_rows", "parent_rows"]


def parent_rows(spans: Spans) -> Int32Array:
    """For each interval the row of the innermost other interval on its thread that contains it.

    Among intervals in table order (begin ascending, longer first) that is the nearest earlier row of the thread whose
    end is not earlier: a "previous greater element" query, answered for all rows at once by pointer doubling. Between
    a row and its candidate all ends are earlier than the row's own, so a candidate that ends too early can be replaced
    by its own candidate: every round at least doubles the distance covered.

    Args:
        spans: A table in its sorted order.

    Returns:
        Row numbers into `spans`; `NO_ROW` at the top of a thread.
    """
    order, ends, first = _by_thread(spans)
    candidate = np.arange(-1, len(order) - 1, dtype=np.int64)
    candidate[first] = NO_ROW
    open_ = np.flatnonzero(candidate >= 0)
    open_ = open_[ends[candidate[open_]] < ends[open_]]
    while len(open_):
        candidate[open_] = candidate[candidate[open_]]
        open_ = open_[candidate[open_] >= 0]
        open_ = open_[ends[candidate[open_]] < ends[open_]]
    return _to_rows(candidate, order)


def enclosing_rows(inner: Spans, outer: Spans, outer_parents: Int32Array) -> Int32Array:
    """For each interval of one table the innermost interval of another that contains it on its thread.

    Args:
        inner: The intervals to place.
        outer: The intervals that may contain them.
        outer_parents: `parent_rows` of `outer`.

    Returns:
        Row numbers into `outer`; `NO_ROW` where none contains the interval.
    """
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


def _by_thread(spans: Spans) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The rows grouped by thread, their ends in that order, and where each thread begins."""
    order = np.argsort(spans.thread, kind="stable")
    threads = spans.thread[order]
    first = np.flatnonzero(np.concatenate(([True], threads[1:] != threads[:-1]))) if len(order) else order
    return order, spans.end_ns[order], first


def _to_rows(positions: Int64Array, order: Int64Array) -> Int32Array:
    """References between places in `order` as references between rows of the table."""
    rows = np.full(len(order), NO_ROW, dtype=np.int32)
    inside = positions >= 0
    rows[order[inside]] = order[positions[inside]]
    return rows
