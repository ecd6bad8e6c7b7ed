"""The cost of autocast: time spent in casts between floating types, and which of them could be avoided."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.core.arrays import json_list
from lightning_perf.analysis.core.intervals import averaged_steps, averaged_time, in_averaged_steps, share_of
from lightning_perf.analysis.steps.phase_timeline import is_backward_node
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int64Array
from lightning_perf.trace.indexing import innermost_marked
from lightning_perf.trace.trace import Trace

_FLOATS = {"double": "fp64", "float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16"}
_NARROW = ("fp16", "bf16")


class Cast(Struct, frozen=True):
    """Casts from one type to another.

    Attributes:
        source: The type read: ``fp64``, ``fp32``, ``fp16``, ``bf16``, ``fp8``.
        target: The type written.
        count: Their number, over the averaged steps.
        time_ns: Their time.
    """

    source: str
    target: str
    count: int
    time_ns: int


class AutocastTax(Struct, frozen=True):
    """Time in casts between floating types, over the averaged steps.

    Attributes:
        casts: By types, the longest time first.
        count: Number of casts.
        time_ns: Their time: of the device work that they launched, or, in a recording without a device, of the host.
        share: Part of all compute kernel time (without a device: of the wall time), 0 to 1; ``None`` if the file is
            truncated or nothing is computed.
        on_device: Whether times are of the device.
        repeated_weight_casts: Casts to 16 bit of a weight's shape beyond one per weight and backward pass: autocast's
            cache is off or was cleared. The gradients that autograd accumulates give the number of weights, so this is
            0 without a backward pass.
        repeated_weight_ns: Their time, at the mean of the casts of their shape.
        round_trips: Casts from 16 bit to FP32 and back of one shape, as around an operator that autocast keeps in FP32.
        round_trip_ns: Time of both casts of each.
        steps: The number of averaged steps.
        missing: Why casts are unknown; ``None`` if they are known.
    """

    casts: tuple[Cast, ...]
    count: int
    time_ns: int
    share: float | None
    on_device: bool
    repeated_weight_casts: int
    repeated_weight_ns: int
    round_trips: int
    round_trip_ns: int
    steps: int
    missing: str | None


def autocast_tax(trace: Trace) -> AutocastTax:
    """Measure the casts between floating types.

    A cast is a copy (``aten::copy_``) with two different floating input types. ``aten::to`` and ``aten::_to_copy`` end
    in one. The recording needs operator input types (``record_shapes=True``).
    """
    steps = int(averaged_steps(trace).sum())
    on_device = len(trace.device) > 0
    if not trace.operators.input_types.any():
        missing = "the recording has no operator input types: record with record_shapes=True"
        return AutocastTax((), 0, 0, None, on_device, 0, 0, 0, 0, steps, missing)
    operators = trace.operators
    pairs = [_pair(types) for types in trace.type_lists]
    is_pair = np.array([pair is not None for pair in pairs], dtype=np.bool_)
    copy = trace.names_where(lambda name: name == "aten::copy_")
    rows = np.flatnonzero(
        copy[operators.name] & is_pair[operators.input_types] & in_averaged_steps(trace, operators.start_ns)
    )
    time, whole = operators.duration_ns[rows], averaged_time(trace).length_ns
    if on_device:
        compute = trace.device.is_compute & in_averaged_steps(trace, trace.device.start_ns)
        spent = np.zeros(len(operators) + 1, dtype=np.int64)  # the last entry takes work without an operator
        np.add.at(spent, trace.links.device_operator, trace.device.duration_ns)
        time, whole = spent[rows], int(trace.device.duration_ns[compute].sum())
    types = operators.input_types[rows]
    found: dict[tuple[str, str], list[int]] = {}
    for code in np.unique(types).tolist():
        its = types == code
        entry = found.setdefault(pairs[code] or ("", ""), [0, 0])
        entry[0] += int(its.sum())
        entry[1] += int(time[its].sum())
    total = int(time.sum())
    node, parents = trace.names_where(is_backward_node)[operators.name], trace.links.operator_parent
    in_backward = innermost_marked(parents, parents[rows], node) != NO_ROW
    repeated, repeated_ns = _repeated_weights(trace, rows, time, pairs, in_backward)
    trips, trips_ns = _round_trips(trace, rows, time, pairs, in_backward)
    return AutocastTax(
        casts=tuple(
            Cast(source, target, count, ns)
            for (source, target), (count, ns) in sorted(found.items(), key=lambda item: (-item[1][1], item[0]))
        ),
        count=len(rows),
        time_ns=total,
        share=share_of(trace, total, whole),
        on_device=on_device,
        repeated_weight_casts=repeated,
        repeated_weight_ns=repeated_ns,
        round_trips=trips,
        round_trip_ns=trips_ns,
        steps=steps,
        missing=None,
    )


@lru_cache(maxsize=65536)
def _pair(types_json: str) -> tuple[str, str] | None:
    """Return source and target of a copy with these input types (destination first), if it is a cast of floats."""
    types = json_list(types_json)
    if len(types) < 2:
        return None
    target, source = (_float(t) for t in types[:2])
    return (source, target) if source and target and source != target else None


def _float(name: object) -> str | None:
    if not isinstance(name, str):
        return None
    return "fp8" if name.startswith("c10::Float8") else _FLOATS.get(name)


def _repeated_weights(
    trace: Trace, rows: Int64Array, time: Int64Array, pairs: list[tuple[str, str] | None], in_backward: BoolArray
) -> tuple[int, int]:
    """Return forward casts to 16 bit beyond one for each gradient of the same shape that autograd accumulates."""
    operators = trace.operators
    first = [_first_shape(shapes) for shapes in trace.shape_lists]
    accumulate = trace.names_where(lambda name: name.endswith("torch::autograd::AccumulateGrad"))
    # The engine's node and the function in it have names with the same end. Only the inner one records shapes.
    gradient = accumulate[operators.name] & (operators.input_shapes > 0)
    gradient &= in_averaged_steps(trace, operators.start_ns)
    weights: dict[str, int] = {}
    for code, count in zip(*np.unique(operators.input_shapes[gradient], return_counts=True), strict=True):
        weights[first[code]] = weights.get(first[code], 0) + int(count)
    narrows = np.array([pair is not None and pair[1] in _NARROW for pair in pairs], dtype=np.bool_)
    chosen = narrows[operators.input_types[rows]] & ~in_backward
    casts: dict[str, list[int]] = {}
    shapes = operators.input_shapes[rows[chosen]]
    for code in np.unique(shapes).tolist():
        its = shapes == code
        entry = casts.setdefault(first[code], [0, 0])
        entry[0] += int(its.sum())
        entry[1] += int(time[chosen][its].sum())
    repeated = repeated_ns = 0
    for shape, (count, ns) in casts.items():
        beyond = max(0, count - weights[shape]) if weights.get(shape) else 0
        repeated += beyond
        repeated_ns += ns * beyond // count
    return repeated, repeated_ns


def _round_trips(
    trace: Trace, rows: Int64Array, time: Int64Array, pairs: list[tuple[str, str] | None], in_backward: BoolArray
) -> tuple[int, int]:
    """Find casts from 16 to 32 bit that the next cast of that shape, thread, step and direction reverts."""
    operators = trace.operators
    # +k widens and -k narrows the same two types.
    kinds = sorted({pair for pair in pairs if pair and pair[0] in _NARROW and pair[1] == "fp32"})
    signed = {pair: k for k, pair in enumerate(kinds, 1)} | {(b, a): -k for k, (a, b) in enumerate(kinds, 1)}
    kind = np.array([signed.get(pair, 0) if pair else 0 for pair in pairs], dtype=np.int64)[operators.input_types[rows]]
    step = np.searchsorted(trace.steps.start_ns, operators.start_ns[rows], side="right")
    shape = operators.input_shapes[rows].astype(np.int64)
    keys = np.stack([step, operators.thread[rows], in_backward, shape])
    order = np.lexsort((operators.start_ns[rows], *keys))
    keys, kind, time = keys[:, order], kind[order], time[order]
    undoes = (keys[:, 1:] == keys[:, :-1]).all(axis=0) & (kind[:-1] > 0) & (kind[1:] == -kind[:-1]) & (keys[3, 1:] > 0)
    return int(undoes.sum()), int((time[1:] + time[:-1])[undoes].sum())


@lru_cache(maxsize=65536)
def _first_shape(shapes_json: str) -> str:
    shapes = json_list(shapes_json)
    return json.dumps(shapes[0]) if shapes else ""
