"""Operators: how often each ran, its cost on the host and on the device, its input shapes and Python stacks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.analysis.core.arrays import sum_by
from lightning_perf.analysis.core.averaged_steps import averaged_steps, in_averaged_steps
from lightning_perf.analysis.kernels.tensor_core_eligibility import most_reasons, on_tensor_cores
from lightning_perf.analysis.model.call_tree import call_paths
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int32Array, Int64Array
from lightning_perf.trace.indexing import blocks, distinct, enclosing_rows, parent_rows, self_ns
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
            `lightning_perf.analysis.kernels.tensor_core_eligibility.REASONS`; None without such products.
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
    counted = in_averaged_steps(trace, table.start_ns)
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
    device_total_ns = sum_by(group[outermost], _with_children(device_self, parents)[outermost], size)

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


def _with_children(own: Int64Array, parents: Int32Array) -> Int64Array:
    """Return each row's value plus those of all rows inside it."""
    total = np.zeros_like(own)
    at = np.flatnonzero(own).astype(np.int32)
    amount = own[at]
    while len(at):  # as many rounds as operators are nested
        np.add.at(total, at, amount)
        above = parents[at]
        inside = above >= 0
        at, amount = above[inside], amount[inside]
    return total


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
