"""Modules by cost: operators on the host and their device work, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.core.arrays import sum_by
from lightning_perf.analysis.core.averaged_steps import averaged_steps, averaged_time, in_averaged_steps
from lightning_perf.analysis.model.call_tree import CallPaths, call_paths
from lightning_perf.trace.columns import NO_ROW, Int32Array, Int64Array, Spans
from lightning_perf.trace.indexing import at_rows, enclosing_rows, innermost_marked, parent_rows, self_ns
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
        placed = (backward_node >= 0) & in_averaged_steps(trace, trace.operators.start_ns)
        own_backward = sum_by(backward_node[placed], trace.operators.duration_ns[placed], size)
        columns["backward_host_ns"] = paths.with_children(own_backward)

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
        columns["device_total_ns"] = paths.with_children(columns["device_self_ns"])
        if owner is not None:
            own_backward = sum_by(backward[backward >= 0], spent[backward >= 0], size)
            columns["backward_device_ns"] = paths.with_children(own_backward)
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
