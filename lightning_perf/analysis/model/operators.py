"""Operators: their table by cost, and each distinct call with its arguments."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from lightning_perf.analysis.intervals import (
    averaged_steps,
    in_averaged_host_steps,
    in_averaged_steps,
    json_list,
    sum_by,
)
from lightning_perf.analysis.kernels.arithmetic import most_reasons, on_tensor_cores
from lightning_perf.analysis.model.modules import call_paths, operator_costs
from lightning_perf.analysis.steps.breakdown import host_phases, is_backward_node
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int32Array, Int64Array
from lightning_perf.trace.indexing import (
    blocks,
    distinct,
    distinct_rows,
    enclosing_rows,
    innermost_marked,
    parent_rows,
    self_ns,
    with_children,
)
from lightning_perf.trace.trace import Trace

_Groups: TypeAlias = NDArray[np.signedinteger[Any]]

MOST_LISTED = 3
MOST_FRAMES = 12

_FRAME = re.compile(r".+\(\d+\): ")
"""The recorder writes ``file(line): function`` for Python code, and ``<built-in …>`` for functions of C."""


class CallsByShape(Struct, frozen=True):
    """The calls of an operator with one list of input shapes.

    Attributes:
        shapes: Dimensions of the inputs as JSON text.
        calls: Calls.
        host_self_ns: Host self time of these calls.
        device_self_ns: Device self time of these calls; None without a device.
    """

    shapes: str
    calls: int
    host_self_ns: int
    device_self_ns: int | None


class CallsByStack(Struct, frozen=True):
    """The calls of an operator from one place in Python.

    Attributes:
        frames: The Python frames around the calls, the innermost first, at most 12.
        calls: Calls.
        host_self_ns: Host self time of these calls.
        device_self_ns: Device self time of these calls; None without a device.
    """

    frames: tuple[str, ...]
    calls: int
    host_self_ns: int
    device_self_ns: int | None


class OperatorRow(Struct, frozen=True):
    """All calls of one operator.

    *Self* is the time of a call outside the operators that it calls, *total* the time with them. An operator inside
    another of the same row adds nothing to the row's total, so that no total is counted twice.

    Attributes:
        name: The operator. Nodes of the backward graph are operators too.
        input_shapes: Dimensions of its inputs as JSON text, if asked for and recorded.
        calls: Calls.
        host_total_ns: Host time of the calls.
        host_self_ns: Host time outside the operators that they called.
        device_total_ns: Time of the device work launched in the calls; None without a device.
        device_self_ns: Time of the device work that they launched themselves; None without a device.
        tensor_core_ns: The part of it on Tensor Cores; None without a device.
        tensor_core_reason: Why most of its matrix products without Tensor Cores run without them, see
            `lightning_perf.analysis.kernels.arithmetic.REASONS`; None without such products.
        shapes: The input shapes that cost most, at most three; empty if not recorded.
        stacks: The Python stacks that cost most, at most three; empty without recorded stacks.
    """

    name: str
    input_shapes: str | None
    calls: int
    host_total_ns: int
    host_self_ns: int
    device_total_ns: int | None
    device_self_ns: int | None
    tensor_core_ns: int | None = None
    tensor_core_reason: str | None = None
    shapes: tuple[CallsByShape, ...] = ()
    stacks: tuple[CallsByStack, ...] = ()


class OperatorTable(Struct, frozen=True):
    """The operators of the averaged steps.

    Attributes:
        rows: The rows, the longest time first: by device self time, then by host self time.
        steps: Steps that the figures are over; divide by it for a figure per step.
        device_ns: Time of all device work; None without a device. Work that overlaps counts each.
        unattributed_device_ns: The part of it that no operator launched (a Triton kernel called from Python, a
            replayed graph, a launch that was not recorded). The rest is the sum of the rows' device self times.
    """

    rows: tuple[OperatorRow, ...]
    steps: int
    device_ns: int | None
    unattributed_device_ns: int | None


def operators(trace: Trace, by_shape: bool = False) -> OperatorTable:
    """Sum up the calls of each operator that began in an averaged step, and the device work that ran there."""
    table, device = trace.operators, trace.device
    counted = in_averaged_host_steps(trace, table.start_ns)
    parents = trace.links.operator_parent
    group, group_name, group_shape = _groups(trace, by_shape)
    size = len(group_name)
    outermost = _outermost(group, parents)

    host_self = self_ns(table, parents)
    host_self[~counted] = 0
    host_self_ns = sum_by(group, host_self, size)
    entered = counted & outermost
    host_total_ns = sum_by(group[entered], table.end_ns[entered] - table.start_ns[entered], size)
    calls = np.bincount(group[counted], minlength=size)

    ran = in_averaged_steps(trace, device.start_ns)
    launcher = trace.links.device_operator
    linked = np.flatnonzero(ran & (launcher >= 0))
    device_self = sum_by(launcher[linked], device.duration_ns[linked], len(table))
    device_self_ns = sum_by(group, device_self, size)
    device_total_ns = sum_by(group[outermost], with_children(device_self, parents)[outermost], size)

    active = counted | (device_self > 0)
    shapes = {} if by_shape else _calls_by_shape(trace, active, group, host_self, device_self)
    stacks = _calls_by_stack(trace, active, group, host_self, device_self)
    has_device = len(device) > 0
    launched_by = group[launcher[linked]]
    on_cores = on_tensor_cores(trace, linked)
    cores_ns = sum_by(launched_by[on_cores], device.duration_ns[linked[on_cores]], size)
    reasons = most_reasons(trace, linked, launched_by)
    chosen = np.flatnonzero((calls > 0) | (device_self_ns > 0))
    rows = [
        OperatorRow(
            name=trace.names[group_name[g]],
            input_shapes=trace.shape_lists[group_shape[g]] if by_shape and group_shape[g] else None,
            calls=int(calls[g]),
            host_total_ns=int(host_total_ns[g]),
            host_self_ns=int(host_self_ns[g]),
            device_total_ns=int(device_total_ns[g]) if has_device else None,
            device_self_ns=int(device_self_ns[g]) if has_device else None,
            tensor_core_ns=int(cores_ns[g]) if has_device else None,
            tensor_core_reason=reasons.get(g),
            shapes=tuple(shapes.get(g, ())),
            stacks=tuple(stacks.get(g, ())),
        )
        for g in chosen.tolist()
    ]
    rows.sort(key=lambda row: (-(row.device_self_ns or 0), -row.host_self_ns, row.name, row.input_shapes or ""))
    return OperatorTable(
        rows=tuple(rows),
        steps=int(averaged_steps(trace).sum()),
        device_ns=int(device.duration_ns[ran].sum()) if has_device else None,
        unattributed_device_ns=int(device.duration_ns[ran & (launcher < 0)].sum()) if has_device else None,
    )


def _groups(trace: Trace, by_shape: bool) -> tuple[_Groups, Int64Array, Int64Array]:
    """Return the group of each operator row, and the name and shape codes of each group."""
    table = trace.operators
    if not by_shape:
        names = np.arange(len(trace.names), dtype=np.int64)
        return table.name, names, np.zeros_like(names)
    shapes = max(len(trace.shape_lists), 1)
    keys, group = np.unique(table.name.astype(np.int64) * shapes + table.input_shapes, return_inverse=True)
    return group, keys // shapes, keys % shapes


def _outermost(group: _Groups, parents: Int32Array) -> BoolArray:
    """Return rows without a row of their own group around them."""
    outermost = np.ones(len(group), dtype=np.bool_)
    for block in blocks(len(group)):
        rows = block.start + np.flatnonzero(parents[block] >= 0)
        above = parents[rows]
        while len(rows):  # as many rounds as operators are nested
            same = group[above] == group[rows]
            outermost[rows[same]] = False
            above = parents[above]
            still = ~same & (above >= 0)
            rows, above = rows[still], above[still]
    return outermost


def _calls_by_shape(
    trace: Trace, counted: BoolArray, group: _Groups, host_self: Int64Array, device_self: Int64Array
) -> dict[int, list[CallsByShape]]:
    """Return for each group of operators with recorded shapes those that cost most, at most three."""
    rows = np.flatnonzero(counted & (trace.operators.input_shapes > 0))
    used, place = distinct(trace.operators.input_shapes[rows])
    # Shapes with equal times are in the order of their text: their codes depend on the order of the events.
    listed_shapes = sorted(trace.shape_lists[code] for code in used.tolist())
    order = {shapes: at for at, shapes in enumerate(listed_shapes)}
    codes = np.array([order[trace.shape_lists[code]] for code in used.tolist()], dtype=np.int64)[place]
    found: defaultdict[int, list[CallsByShape]] = defaultdict(list)
    for g, code, costs in _most(trace, rows, codes, group, host_self, device_self):
        found[g].append(CallsByShape(listed_shapes[code], *costs))
    return found


def _calls_by_stack(
    trace: Trace, counted: BoolArray, group: _Groups, host_self: Int64Array, device_self: Int64Array
) -> dict[int, list[CallsByStack]]:
    """Return for each group of operators the Python stacks that cost most, at most three; none without stacks."""
    python = trace.python
    if not len(python):
        return {}
    parents = parent_rows(python)
    frame = enclosing_rows(trace.operators, python, parents)
    rows = np.flatnonzero(counted & (frame >= 0))
    wanted = np.zeros(len(python), dtype=np.bool_)
    above = np.unique(frame[rows])
    while len(above):  # as many rounds as functions are nested
        wanted[above] = True
        above = np.unique(parents[above])
        above = above[above >= 0]
        above = above[~wanted[above]]
    paths = call_paths(python.name, parents, wanted)
    node = paths.node_of_row[frame[rows]].astype(np.int64)
    found: defaultdict[int, list[CallsByStack]] = defaultdict(list)
    for g, at, costs in _most(trace, rows, node, group, host_self, device_self):
        frames: list[str] = []
        while at != NO_ROW and len(frames) < MOST_FRAMES:
            name = trace.names[paths.name[at]]
            if _FRAME.match(name[:1000]):
                frames.append(name)
            at = int(paths.parent[at])
        if frames:
            found[g].append(CallsByStack(tuple(frames), *costs))
    return found


def _most(
    trace: Trace, rows: Int64Array, key: Int64Array, group: _Groups, host_self: Int64Array, device_self: Int64Array
) -> Iterator[tuple[int, int, tuple[int, int, int | None]]]:
    """Yield the keys of each group with the longest device and then host time: (group, key, (calls, host, device))."""
    size = np.int64(int(key.max(initial=0)) + 1)
    pairs, index = distinct(group[rows].astype(np.int64) * size + key)
    calls = np.bincount(index, minlength=len(pairs))
    host, device = sum_by(index, host_self[rows], len(pairs)), sum_by(index, device_self[rows], len(pairs))
    listed: Counter[int] = Counter()
    for at in np.lexsort((pairs, -host, -device)).tolist():
        g, code = divmod(int(pairs[at]), int(size))
        listed[g] += 1
        if listed[g] <= MOST_LISTED:
            yield g, code, (int(calls[at]), int(host[at]), int(device[at]) if len(trace.device) else None)


MOST_CALLS = 20_000
"""Distinct calls that are kept, those with the most time. A step of a usual model has a few hundred."""

_HALF = {"c10::BFloat16": "bfloat16", "c10::Half": "float16"}
_ACCUMULATE = "AccumulateGrad"


class OperatorCall(Struct, frozen=True):
    """Calls of one operator with the same inputs.

    Attributes:
        types: Types of its inputs as JSON text, as recorded.
        strides: Strides of its inputs in elements, likewise.
        values: Values of the inputs that are no tensors, likewise.
        forward_ns: Time of these calls with the operators inside them.
    """

    name: str
    types: str
    shapes: str
    strides: str
    values: str
    calls: int
    forward_ns: int
    backward_ns: int
    has_backward: bool

    @property
    def time_ns(self) -> int:
        """Time of these calls, forward and backward."""
        return self.forward_ns + self.backward_ns


class ParameterShape(Struct, frozen=True):
    """Parameters of one shape that a step updates.

    Attributes:
        type: Type of their gradients, as recorded.
    """

    shape: tuple[int, ...]
    type: str
    count: int


class OperatorCalls(Struct, frozen=True):
    """The operator calls of the forward pass, over the averaged steps.

    Attributes:
        on_device: Whether times are device times of the kernels that the calls launched. Otherwise they are host times.
        autocast: Type that autocast used in the recording, ``bfloat16`` or ``float16``; ``None`` without autocast.
        calls: Distinct calls, in the order of their first appearance.
        order: The calls of one step in their order, as places in `calls`.
        parameters: Shapes of the parameters that got a gradient in one step.
        unmatched_ns: Time of the backward pass that belongs to no call.
    """

    steps: int
    on_device: bool
    autocast: str | None
    calls: tuple[OperatorCall, ...]
    order: tuple[int, ...]
    parameters: tuple[ParameterShape, ...]
    unmatched_ns: int

    @property
    def step_ns(self) -> float:
        """Time of all operators per step, forward and backward."""
        return (sum(call.time_ns for call in self.calls) + self.unmatched_ns) / self.steps

    def time_ns(self, places: Iterable[int]) -> float:
        """Return the time of single calls, forward and backward: one for each place in `calls`."""
        return sum(self.calls[place].time_ns / self.calls[place].calls for place in places)

    def share_of(self, places: Iterable[int]) -> float:
        """Return the share of the time of all calls that some have."""
        return sum(self.calls[place].time_ns for place in places) / max(1, sum(call.time_ns for call in self.calls))

    def scaled(self, factor: float) -> OperatorCalls:
        """Return the calls with all times multiplied by a factor."""
        calls = tuple(
            replace(call, forward_ns=round(factor * call.forward_ns), backward_ns=round(factor * call.backward_ns))
            for call in self.calls
        )
        return replace(self, calls=calls, unmatched_ns=round(factor * self.unmatched_ns))


def operator_calls(trace: Trace) -> OperatorCalls | None:
    """Find the operator calls of a training step; None without steps, or without a forward pass."""
    table = trace.operators
    steps = int(averaged_steps(trace).sum())
    counted = in_averaged_host_steps(trace, table.start_ns)
    if not steps or not counted.any():
        return None
    outermost = trace.links.operator_parent == NO_ROW
    node = trace.names_where(is_backward_node)[table.name]
    forward = host_phases(trace)["forward"].contains(table.start_ns)
    called = np.flatnonzero(counted & outermost & forward & ~node & (table.thread == trace.steps.thread))
    if not len(called):
        return None
    root = innermost_marked(trace.links.operator_parent, np.arange(len(table)), outermost)
    time_ns = sum_by(root, operator_costs(trace), len(table))
    nodes = np.flatnonzero(counted & outermost & node)
    backward, matched = _backward_ns(trace, called, nodes, time_ns)
    columns = (table.name, table.input_types, table.input_shapes, table.input_strides, table.input_values)
    first, index = distinct_rows(*(column[called].astype(np.int64) for column in columns))
    appearance = np.argsort(first, kind="stable")
    place = np.empty(len(first), dtype=np.int64)
    place[appearance] = np.arange(len(first))
    index, first = place[index], first[appearance]
    counts = np.ones(len(called), dtype=np.int64)
    sums = [sum_by(index, values, len(first)) for values in (counts, time_ns[called], backward, matched)]
    calls = tuple(
        OperatorCall(
            name=trace.names[table.name[row]],
            types=trace.type_lists[table.input_types[row]],
            shapes=trace.shape_lists[table.input_shapes[row]],
            strides=trace.stride_lists[table.input_strides[row]],
            values=trace.value_lists[table.input_values[row]],
            calls=number,
            forward_ns=forward_ns,
            backward_ns=backward_ns,
            has_backward=nodes_matched > 0,
        )
        for row, number, forward_ns, backward_ns, nodes_matched in zip(
            called[first].tolist(), *(values.tolist() for values in sums), strict=True
        )
    )
    if len(calls) > MOST_CALLS:
        return None
    starts = trace.steps.host_start_ns[averaged_steps(trace)]
    step = np.searchsorted(starts, table.start_ns[called], side="right")  # the one with the most calls gives the order
    return OperatorCalls(
        steps=steps,
        on_device=bool(trace.device.is_compute.any()),
        autocast=_autocast(trace, called),
        calls=calls,
        order=tuple(index[step == np.bincount(step).argmax()].tolist()),
        parameters=_parameters(trace, nodes),
        unmatched_ns=int(time_ns[nodes].sum() - backward.sum()),
    )


def _backward_ns(
    trace: Trace, called: Int64Array, nodes: Int64Array, time_ns: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the time and the number of backward nodes of each call.

    Autograd numbers its nodes. A call records the number of the next node at its start, so that a node belongs to the
    last call with its number or a lower one.
    """
    table = trace.operators
    total, number = np.zeros(len(called), dtype=np.int64), np.zeros(len(called), dtype=np.int64)
    tracked = np.flatnonzero(table.sequence[called] >= 0)
    numbered = nodes[table.sequence[nodes] >= 0]
    if not len(tracked) or not len(numbered):
        return total, number
    # Numbers may restart in another process of a joined trace: keep the running maximum ascending.
    starts = np.maximum.accumulate(table.sequence[called[tracked]])
    at = np.searchsorted(starts, table.sequence[numbered], side="right") - 1
    found = tracked[np.maximum(at, 0)]
    earlier = (at >= 0) & (table.start_ns[called[found]] < table.start_ns[numbered])
    np.add.at(total, found[earlier], time_ns[numbered[earlier]])
    np.add.at(number, found[earlier], 1)
    return total, number


def _autocast(trace: Trace, called: Int64Array) -> str | None:
    """Return the type of autocast. It calls an operator again with inputs of that type, inside the original call."""
    table, parents = trace.operators, trace.links.operator_parent
    is_called = np.zeros(len(table) + 1, dtype=np.bool_)
    is_called[called] = True
    again: BoolArray = is_called[parents] & (table.name == table.name[parents]) & (parents >= 0)
    found: Counter[str] = Counter()
    for code, number in zip(*np.unique(table.input_types[again], return_counts=True), strict=True):
        for kind in {kind for kind in json_list(trace.type_lists[code]) if isinstance(kind, str)}:
            if kind in _HALF:
                found[_HALF[kind]] += int(number)
    return found.most_common(1)[0][0] if found else None


def _parameters(trace: Trace, nodes: Int64Array) -> tuple[ParameterShape, ...]:
    """Find the parameters by the nodes that add to their gradients, which hold an operator on the gradient."""
    table, parents = trace.operators, trace.links.operator_parent
    steps = max(1, int(averaged_steps(trace).sum()))
    accumulates = trace.names_where(lambda name: _ACCUMULATE in name)[table.name]
    inside = np.zeros(len(table) + 1, dtype=np.bool_)
    inside[nodes[accumulates[nodes]]] = True
    found: Counter[tuple[tuple[int, ...], str]] = Counter()
    seen: set[int] = set()
    above = parents.copy()
    for _ in range(3):  # the node, its function, and the operator
        for row in np.flatnonzero((above >= 0) & inside[above] & (table.input_shapes > 0)).tolist():
            if int(above[row]) in seen:
                continue
            shapes, types = (
                json_list(trace.shape_lists[table.input_shapes[row]]),
                json_list(trace.type_lists[table.input_types[row]]),
            )
            if shapes and types and isinstance(shapes[0], list) and all(type(n) is int for n in shapes[0]):
                seen.add(int(above[row]))
                found[tuple(shapes[0]), str(types[0])] += 1
        above = np.where(above >= 0, parents[above], above).astype(parents.dtype)
    return tuple(
        ParameterShape(shape, kind, max(1, round(number / steps))) for (shape, kind), number in sorted(found.items())
    )
