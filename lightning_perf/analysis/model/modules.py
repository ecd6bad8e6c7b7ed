"""Modules and the tree of calls by cost: operators on the host and their device work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.intervals import (
    averaged_steps,
    averaged_time,
    in_averaged_host_steps,
    in_averaged_steps,
    sum_by,
)
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int32Array, Int64Array, Spans
from lightning_perf.trace.indexing import (
    at_rows,
    distinct,
    enclosing_rows,
    innermost_marked,
    parent_rows,
    self_ns,
    with_children,
)
from lightning_perf.trace.trace import Trace


def forward_operator(trace: Trace) -> tuple[Int32Array | None, Int64Array]:
    """Link backward operators, which the autograd engine runs, to the operators that made its graph.

    A forward operator is recorded with the number that the next node of the graph will get. So of several with one
    number, the last one made the node. Each forward thread counts on its own, and the recorder numbers threads
    differently: its number belongs to the thread with the most matching sequence numbers.

    Returns for each outermost backward operator the row of its forward operator, and `NO_ROW` for all other rows; None
    if the recording links none. Also, for each operator, the row of the outermost backward operator that it is or runs
    in.
    """
    table, parents = trace.operators, trace.links.operator_parent
    is_backward = (table.forward_thread != 0) & (table.sequence >= 0)
    outermost = is_backward.copy()
    inner = np.flatnonzero(is_backward & (parents >= 0))
    outermost[inner[is_backward[parents[inner]]]] = False
    root = innermost_marked(parents, np.arange(len(parents)), outermost)
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


_PYTHON_PREFIX = "nn.Module: "
"""The prefix of the recorder's names for calls of modules ``with_stack`` (https://github.com/pytorch/pytorch,
``torch/csrc/autograd/profiler_python.cpp``)."""

_ANNOTATION_PREFIX = "[pl][module]"
"""The prefix of such names in Lightning's ``PyTorchProfiler(record_module_names=True)``."""


class ModuleRow(Struct, frozen=True):
    """A module in its place in the tree. Totals include the modules inside it, self times do not.

    Attributes:
        name: The module, as recorded without its prefix, e.g. ``Conv2d_3``.
        depth: 0 for the outermost.
        parent: Index of the row of the module that called it; None for the outermost.
        calls: Forward calls.
        host_total_ns: Host time of its forward.
        host_self_ns: Host time of its forward outside the modules that it called.
        device_total_ns: Time of the device work that its forward launched; None without a device.
        device_self_ns: The part that it launched outside the modules that it called; None without a device.
        backward_host_ns: Host time of the backward of its operators; None if the recording does not link backward
            to forward.
        backward_device_ns: Time of the device work that their backward launched; None without links or a device.
    """

    name: str
    depth: int
    parent: int | None
    calls: int
    host_total_ns: int
    host_self_ns: int
    device_total_ns: int | None
    device_self_ns: int | None
    backward_host_ns: int | None
    backward_device_ns: int | None


class ModuleTree(Struct, frozen=True):
    """The modules of the averaged steps.

    Attributes:
        rows: The tree, each module before those that it called. Of siblings the longest time comes first.
        source: The source of the modules: Python functions (``with_stack=True``) or annotations.
        steps: Steps that the figures are over; divide by it for a figure per step.
        device_ns: Time of all device work; None without a device.
        unattributed_device_ns: The part that belongs to no module: the optimizer, the loss, copies of batches.
    """

    rows: tuple[ModuleRow, ...]
    source: Literal["python", "annotations"]
    steps: int
    device_ns: int | None
    unattributed_device_ns: int | None


def modules(trace: Trace) -> ModuleTree | None:
    """Sum up the calls of each module in an averaged step.

    Autograd's sequence numbers link backward to forward. If an operator of a module made a node of the graph, the
    module owns the work of the engine for that node.
    """
    calls, prefix, source = module_calls(trace)
    if not len(calls):
        return None
    parents = parent_rows(calls)
    paths = call_paths(calls.name, parents, np.ones(len(calls), dtype=np.bool_))
    size = len(paths.name)

    columns: dict[str, Any] = dict.fromkeys(
        ("device_total_ns", "device_self_ns", "backward_host_ns", "backward_device_ns")
    )
    columns |= {
        "calls": np.bincount(paths.node_of_row, minlength=size),
        "host_total_ns": sum_by(paths.node_of_row, calls.duration_ns, size),
        "host_self_ns": sum_by(paths.node_of_row, self_ns(calls, parents), size),
    }
    operator_node = at_rows(paths.node_of_row, enclosing_rows(trace.operators, calls, parents), NO_ROW)
    owner, backward_root = forward_operator(trace)
    backward_node = np.full(len(trace.operators), NO_ROW, dtype=np.int32)
    if owner is not None:
        backward_node = at_rows(operator_node, owner, NO_ROW)
        placed = (backward_node >= 0) & in_averaged_host_steps(trace, trace.operators.start_ns)
        own_backward = sum_by(backward_node[placed], trace.operators.duration_ns[placed], size)
        columns["backward_host_ns"] = with_children(own_backward, paths.parent)

    unattributed = device_ns = None
    if len(trace.device):
        ran = np.flatnonzero(in_averaged_steps(trace, trace.device.start_ns))
        spent = trace.device.duration_ns[ran]
        operator = trace.links.device_operator[ran]
        forward = at_rows(operator_node, operator, NO_ROW)
        root = at_rows(backward_root, operator, NO_ROW)
        backward = np.where(forward < 0, at_rows(backward_node, root, NO_ROW), NO_ROW)
        # Launched from Python outside of any operator, like Triton's kernels: by the place of the call.
        call = trace.links.device_runtime[ran]
        bare = np.flatnonzero((operator < 0) & (call >= 0))
        used, place = np.unique(call[bare], return_inverse=True)
        around = enclosing_rows(trace.runtime.at(used), calls, parents)
        forward[bare] = at_rows(paths.node_of_row, around[place], NO_ROW)
        columns["device_self_ns"] = sum_by(forward[forward >= 0], spent[forward >= 0], size)
        columns["device_total_ns"] = with_children(columns["device_self_ns"], paths.parent)
        if owner is not None:
            own_backward = sum_by(backward[backward >= 0], spent[backward >= 0], size)
            columns["backward_device_ns"] = with_children(own_backward, paths.parent)
        device_ns = int(spent.sum())
        unattributed = int(spent[(forward < 0) & (backward < 0)].sum())
    return ModuleTree(
        rows=_rows(trace, paths, columns, prefix),
        source=source,
        steps=int(averaged_steps(trace).sum()),
        device_ns=device_ns,
        unattributed_device_ns=unattributed,
    )


def module_calls(trace: Trace, *, averaged: bool = True) -> tuple[Spans, str, Literal["python", "annotations"]]:
    """Return the calls of modules, the prefix of their names, and the source of the names."""
    calls = _calls(trace, trace.python, _PYTHON_PREFIX, averaged)
    if len(calls):
        return calls, _PYTHON_PREFIX, "python"
    return _calls(trace, trace.annotations, _ANNOTATION_PREFIX, averaged), _ANNOTATION_PREFIX, "annotations"


def _calls(trace: Trace, table: Spans, prefix: str, averaged: bool) -> Spans:
    if not len(table):
        return table
    rows = np.flatnonzero(trace.names_where(lambda name: name.startswith(prefix))[table.name])
    if averaged:
        # Not by their start: an unmarked recording counts from its first operator, and a module begins before that.
        rows = rows[averaged_time(trace).covered(table.start_ns[rows], table.end_ns[rows]) > 0]
    return table.at(rows)


def _rows(trace: Trace, paths: CallPaths, columns: Mapping[str, Any], prefix: str) -> tuple[ModuleRow, ...]:
    device_ns = np.zeros(len(paths.name), dtype=np.int64)
    for column in (columns["device_total_ns"], columns["backward_device_ns"]):
        device_ns += 0 if column is None else column
    names = [trace.names[code] for code in paths.name.tolist()]
    order = paths.depth_first(
        range(len(names)), lambda at: (-int(device_ns[at]), -int(columns["host_total_ns"][at]), names[at])
    )
    place = {at: row for row, at in enumerate(order)}

    def figures(at: int) -> dict[str, Any]:
        return {name: None if column is None else int(column[at]) for name, column in columns.items()}

    return tuple(
        ModuleRow(names[at].removeprefix(prefix), int(paths.depth[at]), place.get(int(paths.parent[at])), **figures(at))
        for at in order
    )


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
    counted = in_averaged_host_steps(trace, table.start_ns)
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
    device_total = with_children(device_self, paths.parent)
    calls = np.bincount(node, minlength=size)
    # A node costs at least as much as those below it, and precedes them.
    shares = (total / max(int(total.max(initial=0)), 1) for total in (host_total, device_total))
    kept = set(np.argsort(-np.maximum(*shares), kind="stable")[:most].tolist())
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
