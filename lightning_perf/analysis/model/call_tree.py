"""Call paths: calls with the same names from the outermost one down share a node of a tree, with its cost."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.core.arrays import sum_by
from lightning_perf.analysis.core.averaged_steps import averaged_steps, in_averaged_steps
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int32Array, Int64Array
from lightning_perf.trace.indexing import distinct, self_ns
from lightning_perf.trace.trace import Trace

MOST_ROWS = 1000


class CallTreeRow(Struct, frozen=True):
    """All calls of an operator along one call path.

    Attributes:
        name: The operator.
        depth: 0 for operators that no operator calls.
        parent: Index of the row of the operator that calls it; None for the outermost.
        calls: Calls.
        host_total_ns: Host time of the calls.
        host_self_ns: Host time outside the operators that they call.
        device_total_ns: Time of the device work launched in the calls; None without a device.
        device_self_ns: Time of the device work that they launch themselves; None without a device.
    """

    name: str
    depth: int
    parent: int | None
    calls: int
    host_total_ns: int
    host_self_ns: int
    device_total_ns: int | None
    device_self_ns: int | None


class CallTree(Struct, frozen=True):
    """The call paths of the operators of the averaged steps.

    Attributes:
        rows: The rows, each before those that it calls, the longest time first among rows with one parent.
        steps: Steps that the figures are over; divide by it for a figure per step.
        left_out: Number of the cheapest call paths that are left out.
    """

    rows: tuple[CallTreeRow, ...]
    steps: int
    left_out: int


def call_tree(trace: Trace, most: int = MOST_ROWS) -> CallTree:
    """Sum up the operators that began in an averaged step, and the device work that ran there, by call path."""
    table, device, launcher = trace.operators, trace.device, trace.links.device_operator
    ran = in_averaged_steps(trace, device.start_ns)
    linked = np.flatnonzero(ran & (launcher >= 0))
    counted = in_averaged_steps(trace, table.start_ns)
    calling = counted.copy()
    calling[launcher[linked]] = True
    paths = call_paths(table.name, trace.links.operator_parent, calling)
    size = len(paths.name)
    rows = np.flatnonzero(counted)
    node = paths.node_of_row[rows]
    host_total = sum_by(node, table.end_ns[rows] - table.start_ns[rows], size)
    device_self = sum_by(paths.node_of_row[launcher[linked]], device.duration_ns[linked], size)
    # Siblings that overlap (a thread id used twice) would make a self time negative.
    inner = paths.parent >= 0
    host_self = np.maximum(host_total - sum_by(paths.parent[inner], host_total[inner], size), 0)
    device_total = paths.with_children(device_self)
    calls = np.bincount(node, minlength=size)
    kept = _most_expensive(host_total, device_total, most)
    has_device = len(device) > 0
    cost = device_total if has_device else host_total
    order = paths.depth_first(kept, lambda at: (-int(cost[at]), -int(host_total[at])))
    place = {at: row for row, at in enumerate(order)}
    return CallTree(
        rows=tuple(
            CallTreeRow(
                name=trace.names[paths.name[at]],
                depth=int(paths.depth[at]),
                parent=place.get(int(paths.parent[at])),
                calls=int(calls[at]),
                host_total_ns=int(host_total[at]),
                host_self_ns=int(host_self[at]),
                device_total_ns=int(device_total[at]) if has_device else None,
                device_self_ns=int(device_self[at]) if has_device else None,
            )
            for at in order
        ),
        steps=int(averaged_steps(trace).sum()),
        left_out=size - len(order),
    )


def operator_costs(trace: Trace) -> Int64Array:
    """Return the own time of each operator: of the compute kernels that it launches, or else on the host."""
    if not trace.device.is_compute.any():
        return self_ns(trace.operators, trace.links.operator_parent)
    kernels = np.flatnonzero(trace.device.is_compute & (trace.links.device_operator != NO_ROW))
    return sum_by(trace.links.device_operator[kernels], trace.device.duration_ns[kernels], len(trace.operators))


def _most_expensive(host: Int64Array, device: Int64Array, most: int) -> set[int]:
    """Return the nodes with the largest shares. A node costs at least as much as those below it, and precedes them."""
    cost = np.maximum(host / max(int(host.max(initial=0)), 1), device / max(int(device.max(initial=0)), 1))
    return set(np.argsort(-cost, kind="stable")[:most].tolist())


class CallPaths(Struct, frozen=True, eq=False):
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
    """Merge the wanted rows by their call path. A row with an unwanted parent counts as outermost."""
    inner = wanted & (parents >= 0)
    inner &= wanted[parents]
    above = np.where(inner, parents, np.int32(NO_ROW))
    node_of_row = np.full(len(names), NO_ROW, dtype=np.int32)
    waiting, level = (np.flatnonzero(rows).astype(np.int32) for rows in (inner, wanted & ~inner))
    name: list[Int64Array] = []
    parent: list[Int64Array] = []
    depth: list[Int64Array] = []
    size = np.int64(int(names.max(initial=0)) + 1)
    nodes = 0
    while len(level):  # as many rounds as calls are nested
        over = np.where(above[level] >= 0, node_of_row[above[level]], NO_ROW)
        keys, index = distinct((over + np.int64(1)) * size + names[level])
        node_of_row[level] = nodes + index
        name.append(keys % size)
        parent.append(keys // size - 1)
        depth.append(np.full(len(keys), len(depth), dtype=np.int64))
        nodes += len(keys)
        placed = node_of_row[above[waiting]] >= 0
        waiting, level = waiting[~placed], waiting[placed]
    none = np.zeros(0, dtype=np.int64)
    return CallPaths(node_of_row, *(np.concatenate([none, *part]) for part in (name, parent, depth)))
