"""Modules: what each ``nn.Module`` cost, forward and backward, as the tree in which they call one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lightning_perf.analysis.backward import forward_operator
from lightning_perf.analysis.intervals import merge
from lightning_perf.analysis.sums import sum_by
from lightning_perf.analysis.windows import averaged_steps, in_averaged_steps
from lightning_perf.trace.columns import NO_ROW, Int32Array, Int64Array, Spans
from lightning_perf.trace.nesting import enclosing_rows, parent_rows
from lightning_perf.trace.trace import Trace

__all__ = ["ModuleRow", "ModuleTree", "modules"]

_PYTHON_PREFIX = "nn.Module: "
"""How the recorder names calls of modules ``with_stack`` (https://github.com/pytorch/pytorch,
``torch/csrc/autograd/profiler_python.cpp``)."""

_ANNOTATION_PREFIX = "[pl][module]"
"""How Lightning's ``PyTorchProfiler(record_module_names=True)`` names them."""


@dataclass(frozen=True)
class ModuleRow:
    """A module in its place in the tree. Totals hold the modules inside it, self times do not.

    Attributes:
        name: The module, as recorded without its prefix: ``Conv2d_3``.
        depth: 0 for the outermost.
        parent: Index of the row of the module that called it; None for the outermost.
        calls: Forward calls.
        host_total_ns: Host time of its forward.
        host_self_ns: Host time of its forward outside the modules it called.
        device_total_ns: Time of the device work that its forward launched; None without a device.
        device_self_ns: The part that it launched outside the modules it called; None without a device.
        backward_host_ns: Host time of the backward of its operators; None when the recording does not link backward
            to forward.
        backward_device_ns: Time of the device work that their backward launched; None likewise, or without a device.
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


@dataclass(frozen=True)
class ModuleTree:
    """The modules of the averaged steps.

    Attributes:
        rows: The tree, each module before those it called; of siblings the costliest first.
        source: What recorded the modules: Python functions (``with_stack=True``) or annotations.
        steps: Steps that the figures are over; divide by it for a figure a step.
        device_ns: Time of all device work; None without a device.
        unattributed_device_ns: The part that belongs to no module: the optimizer, the loss, copies of batches.
    """

    rows: tuple[ModuleRow, ...]
    source: Literal["python", "annotations"]
    steps: int
    device_ns: int | None
    unattributed_device_ns: int | None


@dataclass(frozen=True, eq=False)
class _Nodes:
    """The places in the tree: ``of_span`` tells each call's, ``parent`` and ``name`` are a node's."""

    of_span: Int64Array
    parent: list[int]
    name: list[int]


@dataclass(frozen=True, eq=False)
class _Costs:
    """Columns of `ModuleRow`, a value a node."""

    calls: Int64Array
    host_total: Int64Array
    host_self: Int64Array
    device_total: Int64Array | None
    device_self: Int64Array | None
    backward_host: Int64Array | None
    backward_device: Int64Array | None


def modules(trace: Trace) -> ModuleTree | None:
    """Sum up the calls of each module in an averaged step.

    Backward is linked to forward by autograd's sequence numbers: the operator of a module that made a node of the
    graph owns what the engine runs for that node.

    Args:
        trace: The recording.

    Returns:
        The tree, or None for a recording without modules.
    """
    source: Literal["python", "annotations"] = "python"
    calls = _calls(trace, trace.python, _PYTHON_PREFIX)
    if not len(calls):
        source, calls = "annotations", _calls(trace, trace.annotations, _ANNOTATION_PREFIX)
    if not len(calls):
        return None
    parents = parent_rows(calls)
    nodes = _nodes(calls, parents)
    size = len(nodes.name)

    duration = calls.duration_ns
    own = duration.copy()
    nested = parents >= 0
    np.subtract.at(own, parents[nested], duration[nested])
    host_self = sum_by(nodes.of_span, np.maximum(own, 0), size)
    host_total = sum_by(nodes.of_span, duration, size)
    called = np.bincount(nodes.of_span, minlength=size)

    operator_node = _places(enclosing_rows(trace.operators, calls, parents), nodes)
    owner, backward_root = forward_operator(trace)
    backward_host = backward_device = None
    backward_node = np.full(len(trace.operators), NO_ROW, dtype=np.int64)
    if owner is not None:
        known = owner >= 0
        backward_node[known] = operator_node[owner[known]]
        placed = (backward_node >= 0) & in_averaged_steps(trace, trace.operators.start_ns)
        backward_host = _with_children(
            sum_by(backward_node[placed], trace.operators.duration_ns[placed], size), nodes.parent
        )

    device_self = device_total = None
    unattributed = device_ns = None
    if len(trace.device):
        ran = np.flatnonzero(in_averaged_steps(trace, trace.device.start_ns))
        spent = trace.device.duration_ns[ran]
        forward, backward = _device_places(
            trace, ran, calls, parents, nodes, operator_node, backward_node, backward_root
        )
        device_self = sum_by(forward[forward >= 0], spent[forward >= 0], size)
        device_total = _with_children(device_self, nodes.parent)
        if owner is not None:
            own_backward = sum_by(backward[backward >= 0], spent[backward >= 0], size)
            backward_device = _with_children(own_backward, nodes.parent)
        device_ns = int(spent.sum())
        unattributed = int(spent[(forward < 0) & (backward < 0)].sum())
    costs = _Costs(called, host_total, host_self, device_total, device_self, backward_host, backward_device)
    return ModuleTree(
        rows=_rows(trace, nodes, costs, len(_PYTHON_PREFIX) if source == "python" else len(_ANNOTATION_PREFIX)),
        source=source,
        steps=int(averaged_steps(trace).sum()),
        device_ns=device_ns,
        unattributed_device_ns=unattributed,
    )


def _calls(trace: Trace, table: Spans, prefix: str) -> Spans:
    if not len(table):
        return table
    rows = np.flatnonzero(trace.names_where(lambda name: name.startswith(prefix))[table.name])
    averaged = averaged_steps(trace)
    steps = merge(trace.steps.start_ns[averaged], trace.steps.end_ns[averaged])
    # Not by their begin: an unmarked recording counts from its first operator, and a module begins before that.
    rows = rows[steps.covered(table.start_ns[rows], table.end_ns[rows]) > 0]
    return Spans(table.start_ns[rows], table.end_ns[rows], table.name[rows], table.thread[rows])


def _nodes(calls: Spans, parents: Int32Array) -> _Nodes:
    """Calls of one module by one caller's node are one node; found level by level."""
    of_span = np.full(len(calls), NO_ROW, dtype=np.int64)
    parent: list[int] = []
    name: list[int] = []
    names = int(calls.name.max()) + 1
    level = np.flatnonzero(parents == NO_ROW)
    open_ = np.flatnonzero(parents >= 0)
    while len(level):
        above = np.where(parents[level] >= 0, of_span[np.maximum(parents[level], 0)], NO_ROW)
        keys, at = np.unique((above + 1) * names + calls.name[level], return_inverse=True)
        of_span[level] = len(name) + at
        parent += (keys // names - 1).tolist()
        name += (keys % names).tolist()
        ready = of_span[parents[open_]] >= 0
        level, open_ = open_[ready], open_[~ready]
    return _Nodes(of_span, parent, name)


def _places(span: Int32Array, nodes: _Nodes) -> Int64Array:
    """The node of each row that lies in a call."""
    place: Int64Array = np.where(span >= 0, nodes.of_span[np.maximum(span, 0)], NO_ROW)
    return place


def _device_places(
    trace: Trace,
    rows: Int64Array,
    calls: Spans,
    parents: Int32Array,
    nodes: _Nodes,
    operator_node: Int64Array,
    backward_node: Int64Array,
    backward_root: Int32Array,
) -> tuple[Int64Array, Int64Array]:
    """The node whose forward, and the one whose backward, launched each device row."""
    nowhere = np.int64(NO_ROW)
    operator = trace.links.device_operator[rows]
    inside = operator >= 0
    at = np.maximum(operator, 0)
    forward = np.full(len(rows), nowhere)
    backward = np.full(len(rows), nowhere)
    if len(trace.operators):
        forward = np.where(inside, operator_node[at], nowhere)
        root = np.where(inside, backward_root[at], NO_ROW)
        backward = np.where((root >= 0) & (forward < 0), backward_node[np.maximum(root, 0)], nowhere)
    # Launched from Python outside of any operator, as Triton's kernels are: by where the call was made.
    call = trace.links.device_runtime[rows]
    bare = np.flatnonzero(~inside & (call >= 0))
    used = np.unique(call[bare])
    runtime = trace.runtime
    spans = Spans(runtime.start_ns[used], runtime.end_ns[used], runtime.name[used], runtime.thread[used])
    place = _places(enclosing_rows(spans, calls, parents), nodes)
    forward[bare] = place[np.searchsorted(used, call[bare])]
    return forward, backward


def _with_children(own: Int64Array, parent: list[int]) -> Int64Array:
    total = own.copy()
    for node in range(len(parent) - 1, -1, -1):  # children have higher numbers than their parents
        if parent[node] >= 0:
            total[parent[node]] += total[node]
    return total


def _rows(trace: Trace, nodes: _Nodes, costs: _Costs, prefix: int) -> tuple[ModuleRow, ...]:
    children: dict[int, list[int]] = {}
    for node, above in enumerate(nodes.parent):
        children.setdefault(above, []).append(node)

    def dearest_last(siblings: list[int]) -> list[int]:
        def cost(node: int) -> tuple[int, int, str]:
            device = (_at(costs.device_total, node) or 0) + (_at(costs.backward_device, node) or 0)
            return -device, -int(costs.host_total[node]), trace.names[nodes.name[node]]

        return sorted(siblings, key=cost, reverse=True)

    rows: list[ModuleRow] = []
    # The last one pushed is the next one shown.
    stack: list[tuple[int, int, int | None]] = [(node, 0, None) for node in dearest_last(children[NO_ROW])]
    while stack:
        node, depth, parent = stack.pop()
        at = len(rows)
        rows.append(
            ModuleRow(
                name=trace.names[nodes.name[node]][prefix:],
                depth=depth,
                parent=parent,
                calls=int(costs.calls[node]),
                host_total_ns=int(costs.host_total[node]),
                host_self_ns=int(costs.host_self[node]),
                device_total_ns=_at(costs.device_total, node),
                device_self_ns=_at(costs.device_self, node),
                backward_host_ns=_at(costs.backward_host, node),
                backward_device_ns=_at(costs.backward_device, node),
            )
        )
        stack += [(child, depth + 1, at) for child in dearest_last(children.get(node, []))]
    return tuple(rows)


def _at(column: Int64Array | None, node: int) -> int | None:
    return None if column is None else int(column[node])
