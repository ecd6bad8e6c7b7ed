"""The order of a table's rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_perf.trace.columns import Int64Array

__all__ = ["time_order"]


def time_order(start_ns: Int64Array, end_ns: Int64Array) -> NDArray[np.intp] | None:
    """The order by begin, of equal begins the longer first; None when the rows stand in that order already.

    Recordings are nearly sorted, which a stable sort uses; only rows with equal begins are then looked at again.
    """
    if len(start_ns) < 2:
        return None
    order = None
    starts, ends = start_ns, end_ns
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    wrong = (starts[1:] == starts[:-1]) & (ends[1:] > ends[:-1])
    if not wrong.any():
        return order
    tied = np.zeros(len(starts), dtype=np.bool_)
    tied[1:] = starts[1:] == starts[:-1]
    tied[:-1] |= tied[1:]
    rows = np.flatnonzero(tied)
    if order is None:
        order = np.arange(len(starts))
    order[rows] = order[rows[np.lexsort((-ends[rows], starts[rows]))]]
    return order
