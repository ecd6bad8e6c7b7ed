"""The call tree of operators: which operator calls which, and the cost of each call path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_perf.analysis.core.arrays import sum_by
from lightning_perf.analysis.core.averaged_steps import averaged_steps, in_averaged_steps
from lightning_perf.analysis.core.call_paths import call_paths
from lightning_perf.trace.columns import Int64Array
from lightning_perf.trace.trace import Trace

__all__ = ["CallTree", "CallTreeRow", "call_tree"]

MOST_ROWS = 1000


@dataclass(frozen=True)
class CallTreeRow:
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


@dataclass(frozen=True)
class CallTree:
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
    """Sum up the operators that began in an averaged step, and the device work that ran there, by call path.

    Args:
        trace: The recording.
        most: Maximum number of rows. The cheapest call paths are left out.

    Returns:
        The tree.
    """
    table, device, launcher = trace.operators, trace.device, trace.links.device_operator
    ran = in_averaged_steps(trace, device.start_ns)
    linked = np.flatnonzero(ran & (launcher >= 0))
    counted = in_averaged_steps(trace, table.start_ns)
    calling = counted.copy()
    calling[launcher[linked]] = True
    paths = call_paths(table.name, trace.links.operator_parent, calling)
    size = len(paths.name)
    rows = np.flatnonzero(counted)
    node = paths.node_of_row[rows].astype(np.int64)
    host_total = sum_by(node, table.duration_ns[rows], size)
    device_self = sum_by(paths.node_of_row[launcher[linked]].astype(np.int64), device.duration_ns[linked], size)
    # Siblings that overlap (a thread id used twice) would make a self time negative.
    host_self = np.maximum(host_total - _of_children(host_total, paths.parent), 0)
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


def _of_children(value: Int64Array, parent: Int64Array) -> Int64Array:
    inner = parent >= 0
    return sum_by(parent[inner], value[inner], len(value))


def _most_expensive(host: Int64Array, device: Int64Array, most: int) -> set[int]:
    """Return the nodes with the largest shares. A node costs at least as much as those below it, and precedes them."""
    cost = np.maximum(host / max(int(host.max(initial=0)), 1), device / max(int(device.max(initial=0)), 1))
    return set(np.argsort(-cost, kind="stable")[:most].tolist())
