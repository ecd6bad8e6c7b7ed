"""Which forward operator a backward operator belongs to, by autograd's sequence numbers."""

from __future__ import annotations

import numpy as np

from lightning_perf.trace.columns import NO_ROW, BoolArray, Int32Array, Int64Array
from lightning_perf.trace.trace import Trace

__all__ = ["forward_operator"]


def forward_operator(trace: Trace) -> tuple[Int32Array | None, Int32Array]:
    """Link what the autograd engine runs to the operators that made its graph.

    A forward operator is recorded with the number that the next node of the graph will get, so of several with one
    number the last one made the node. The numbers count for each forward thread on its own, and the recorder numbers
    threads its own way: a number of its is taken for the thread of which most sequence numbers fit.

    Args:
        trace: The recording.

    Returns:
        For each outermost backward operator the row of its forward operator (`NO_ROW` for all others and for those
        without one), or None when the recording links none; and for each operator the row of the outermost backward
        operator that it runs in or is.
    """
    table, parents = trace.operators, trace.links.operator_parent
    is_backward = (table.forward_thread != 0) & (table.sequence >= 0)
    outermost = is_backward.copy()
    inner = np.flatnonzero(is_backward & (parents >= 0))
    outermost[inner[is_backward[parents[inner]]]] = False
    root = _roots(outermost, parents)
    forward = np.flatnonzero((table.forward_thread == 0) & (table.sequence >= 0))
    if not len(forward) or not outermost.any():
        return None, root
    owner = np.full(len(table), NO_ROW, dtype=np.int32)
    by_thread = {}
    for thread in np.unique(table.thread[forward]).tolist():
        rows = forward[table.thread[forward] == thread][::-1]
        numbers, first = np.unique(table.sequence[rows], return_index=True)
        by_thread[thread] = numbers, rows[first]
    for number in np.unique(table.forward_thread[outermost]).tolist():
        wanted = np.flatnonzero(outermost & (table.forward_thread == number))
        found = max(
            (_match(table.sequence[wanted], *each) for each in by_thread.values()), key=lambda row: (row >= 0).sum()
        )
        owner[wanted] = found
    return owner, root


def _match(sequence: Int64Array, numbers: Int64Array, rows: Int64Array) -> Int64Array:
    at = np.minimum(np.searchsorted(numbers, sequence), len(numbers) - 1)
    return np.where(numbers[at] == sequence, rows[at], NO_ROW)


def _roots(outermost: BoolArray, parents: Int32Array) -> Int32Array:
    """The outermost backward operator around each row, itself included."""
    root = np.where(outermost, np.arange(len(parents), dtype=np.int32), np.int32(NO_ROW))
    rows = np.flatnonzero(~outermost & (parents >= 0)) if outermost.any() else np.zeros(0, dtype=np.int64)
    above = parents[rows]
    while len(rows):  # as many rounds as operators are nested
        hit = outermost[above]
        root[rows[hit]] = above[hit]
        rows, above = rows[~hit], parents[above[~hit]]
        rows, above = rows[above >= 0], above[above >= 0]
    return root
