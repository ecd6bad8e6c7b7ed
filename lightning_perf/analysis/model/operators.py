"""Operators: how often each ran, and its cost on the host and on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_perf.analysis.core.arrays import sum_by
from lightning_perf.analysis.core.averaged_steps import averaged_steps, in_averaged_steps
from lightning_perf.analysis.kernels.tensor_core_eligibility import tensor_core_use
from lightning_perf.analysis.model.operator_origins import CallsByShape, CallsByStack, by_stack
from lightning_perf.analysis.model.operator_origins import by_shape as calls_by_shape
from lightning_perf.trace.columns import BoolArray, Int32Array, Int64Array
from lightning_perf.trace.indexing import self_ns
from lightning_perf.trace.trace import Trace


@dataclass(frozen=True)
class OperatorRow:
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


@dataclass(frozen=True)
class OperatorTable:
    """The operators of the averaged steps.

    Attributes:
        rows: The rows, the longest time first: by device self time, then by host self time.
        steps: Steps that the figures are over; divide by it for a figure per step.
        host_ns: Host time inside operators, which is the sum of the rows' self times.
        device_ns: Time of all device work; None without a device. Work that overlaps counts each.
        unattributed_device_ns: The part of it that no operator launched (a Triton kernel called from Python, a
            replayed graph, a launch that was not recorded). The rest is the sum of the rows' device self times.
    """

    rows: tuple[OperatorRow, ...]
    steps: int
    host_ns: int
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

    duration = table.duration_ns
    host_self = self_ns(table, parents)
    host_self_ns = sum_by(group[counted], host_self[counted], size)
    host_total_ns = sum_by(group[counted & outermost], duration[counted & outermost], size)
    calls = np.bincount(group[counted], minlength=size)

    ran = in_averaged_steps(trace, device.start_ns)
    device_self, unattributed = _device_self(trace, ran)
    device_self_ns = sum_by(group, device_self, size)
    device_total_ns = sum_by(group[outermost], _with_children(device_self, parents)[outermost], size)

    counted_self = np.where(counted, host_self, 0)
    active = counted | (device_self > 0)
    shapes = {} if by_shape else calls_by_shape(trace, active, group, counted_self, device_self)
    stacks = by_stack(trace, active, group, counted_self, device_self)
    has_device = len(device) > 0
    launcher = trace.links.device_operator
    linked = np.flatnonzero(ran & (launcher >= 0))
    cores_ns, _, reasons = tensor_core_use(trace, linked, group[launcher[linked]], size)
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
            tensor_core_reason=reasons[g],
            shapes=tuple(shapes.get(g, ())),
            stacks=tuple(stacks.get(g, ())),
        )
        for g in chosen.tolist()
    ]
    rows.sort(key=lambda row: (-(row.device_self_ns or 0), -row.host_self_ns, row.name, row.input_shapes or ""))
    return OperatorTable(
        rows=tuple(rows),
        steps=int(averaged_steps(trace).sum()),
        host_ns=int(host_self_ns.sum()),
        device_ns=int(device.duration_ns[ran].sum()) if has_device else None,
        unattributed_device_ns=unattributed if has_device else None,
    )


def _groups(trace: Trace, by_shape: bool) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the group of each operator row, and the name and shape codes of each group."""
    table = trace.operators
    if not by_shape:
        names = np.arange(len(trace.names), dtype=np.int64)
        return table.name.astype(np.int64), names, np.zeros_like(names)
    shapes = max(len(trace.shape_lists), 1)
    keys, group = np.unique(table.name.astype(np.int64) * shapes + table.input_shapes, return_inverse=True)
    return group.astype(np.int64), keys // shapes, keys % shapes


def _outermost(group: Int64Array, parents: Int32Array) -> BoolArray:
    """Return rows without a row of their own group around them."""
    outermost = np.ones(len(group), dtype=np.bool_)
    rows = np.flatnonzero(parents >= 0)
    above = parents[rows]
    while len(rows):  # as many rounds as operators are nested
        same = group[above] == group[rows]
        outermost[rows[same]] = False
        above = parents[above]
        still = ~same & (above >= 0)
        rows, above = rows[still], above[still]
    return outermost


def _device_self(trace: Trace, ran: BoolArray) -> tuple[Int64Array, int]:
    """Return the device time launched directly in each operator row, and the time that no operator launched."""
    launcher = trace.links.device_operator
    linked = ran & (launcher >= 0)
    duration = trace.device.duration_ns
    return (
        sum_by(launcher[linked], duration[linked], len(trace.operators)),
        int(duration[ran & (launcher < 0)].sum()),
    )


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
