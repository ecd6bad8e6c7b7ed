"""Call paths: calls with the same names from the outermost one down share a node of a tree."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_perf.trace.columns import NO_ROW, BoolArray, Int32Array, Int64Array
from lightning_perf.trace.indexing import distinct

__all__ = ["CallPaths", "call_paths"]


@dataclass(frozen=True, eq=False)
class CallPaths:
    """The tree of call paths of some rows. Parents come before their children.

    Attributes:
        node_of_row: The node of each row; `NO_ROW` for rows that were not asked for.
        name: For each node, the code of its name.
        parent: For each node, the node above it; `NO_ROW` for outermost calls.
        depth: For each node, its depth; 0 for outermost calls.
    """

    node_of_row: Int32Array
    name: Int64Array
    parent: Int64Array
    depth: Int64Array

    def with_children(self, own: Int64Array) -> Int64Array:
        """Return the value of each node plus those of all nodes below it."""
        total = own.copy()
        for at in range(len(own) - 1, -1, -1):
            if self.parent[at] >= 0:
                total[self.parent[at]] += total[at]
        return total

    def depth_first(self, kept: Collection[int], key: Callable[[int], Any]) -> list[int]:
        """Return nodes, each followed by those below it. Siblings ascend by their key."""
        children: dict[int, list[int]] = {}
        for at in sorted(kept, key=key, reverse=True):
            above = int(self.parent[at])
            children.setdefault(above if above in kept else NO_ROW, []).append(at)
        order = []
        waiting = children.get(NO_ROW, [])
        while waiting:
            at = waiting.pop()
            order.append(at)
            waiting += children.get(at, [])
        return order


def call_paths(names: Int32Array, parents: Int32Array, wanted: BoolArray) -> CallPaths:
    """Merge the wanted rows by their call path. A row with an unwanted parent counts as outermost.

    Args:
        names: Code of the name of each row.
        parents: The row around each row, or `NO_ROW`.
        wanted: Whether a row counts.

    Returns:
        The tree.
    """
    above = np.where(wanted & (parents >= 0), parents, NO_ROW).astype(np.int64)
    inner = np.flatnonzero(above >= 0)
    above[inner[~wanted[above[inner]]]] = NO_ROW
    node_of_row = np.full(len(names), NO_ROW, dtype=np.int32)
    rows = np.flatnonzero(wanted)
    waiting, level = rows[above[rows] >= 0], rows[above[rows] < 0]
    name: list[Int64Array] = []
    parent: list[Int64Array] = []
    depth: list[Int64Array] = []
    size = np.int64(int(names.max(initial=0)) + 1)
    nodes = 0
    while len(level):  # as many rounds as calls are nested
        over = np.where(above[level] >= 0, node_of_row[above[level]], NO_ROW).astype(np.int64)
        keys, index = distinct((over + 1) * size + names[level])
        node_of_row[level] = nodes + index
        name.append(keys % size)
        parent.append(keys // size - 1)
        depth.append(np.full(len(keys), len(depth), dtype=np.int64))
        nodes += len(keys)
        placed = node_of_row[above[waiting]] >= 0
        waiting, level = waiting[~placed], waiting[placed]
    none = np.zeros(0, dtype=np.int64)
    return CallPaths(node_of_row, *(np.concatenate([none, *part]) for part in (name, parent, depth)))
