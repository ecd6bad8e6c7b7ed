"""The operator calls of a training step: name, inputs, order, and time of the forward and the backward pass.

A call is the outermost operator that the training's own code called, such as ``aten::linear`` and not the
``aten::addmm`` inside it. So no time counts twice, and autocast still applies to the call as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.analysis.core.arrays import json_list, sum_by
from lightning_perf.analysis.core.intervals import averaged_steps, in_averaged_steps
from lightning_perf.analysis.model.modules import operator_costs
from lightning_perf.analysis.steps.phase_timeline import host_phases, is_backward_node
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int64Array
from lightning_perf.trace.indexing import distinct_rows, innermost_marked
from lightning_perf.trace.trace import Trace

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
    counted = in_averaged_steps(trace, table.start_ns)
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
    return OperatorCalls(
        steps=steps,
        on_device=bool(trace.device.is_compute.any()),
        autocast=_autocast(trace, called),
        calls=calls,
        order=_order_of_one_step(trace, called, index),
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


def _order_of_one_step(trace: Trace, called: Int64Array, index: Int64Array) -> tuple[int, ...]:
    """Return the calls of the averaged step that has the most of them."""
    starts = trace.steps.host_start_ns[averaged_steps(trace)]
    step = np.searchsorted(starts, trace.operators.start_ns[called], side="right")
    chosen = np.bincount(step).argmax()
    return tuple(index[step == chosen].tolist())


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
