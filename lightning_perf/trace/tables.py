"""Tables that grow piece by piece and are sorted once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_perf.trace.columns import Int64Array

__all__ = ["GrowingTable", "time_order"]


class GrowingTable:
    """Columns as lists of small arrays, joined at the end one column at a time.

    Args:
        dtypes: The type of each column, by its name.
    """

    def __init__(self, dtypes: dict[str, Any]) -> None:
        self._dtypes = dtypes
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in dtypes}

    def append(self, **columns: Any) -> None:
        """Add rows: a sequence for each column."""
        for name, values in columns.items():
            self._parts[name].append(np.asarray(values, dtype=self._dtypes[name]))

    def take(self) -> dict[str, NDArray[Any]]:
        """The joined columns; the table is empty afterwards."""
        joined = {}
        for name, dtype in self._dtypes.items():
            parts = self._parts[name]
            self._parts[name] = []
            joined[name] = np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)
        return joined


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
