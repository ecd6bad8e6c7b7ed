"""Mixed precision: the gain that a recording in FP32 predicts, and the cost of the casts of autocast."""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod
from typing import Literal

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.host.launches import HostPace, Launches, bounded_by_host
from lightning_perf.analysis.intervals import (
    averaged_steps,
    averaged_time,
    in_averaged_host_steps,
    in_averaged_steps,
    json_list,
    json_shapes,
    share_of,
)
from lightning_perf.analysis.kernels.arithmetic import ARITHMETICS, TYPE_FOLLOWING, arithmetic_of, device_properties
from lightning_perf.analysis.kernels.flops import BACKWARD_CONVOLUTIONS, CONVOLUTIONS, FORMULAS, is_depthwise
from lightning_perf.analysis.kernels.kernel_names import changes_layout, kernel_arithmetic, moves_data
from lightning_perf.analysis.steps.breakdown import PHASES, Breakdown, is_backward_node, launch_phases
from lightning_perf.machine.hardware import DevicePeak, find_device, is_amd, product_speed_up
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int64Array
from lightning_perf.trace.description import DeviceProperties
from lightning_perf.trace.indexing import at_rows, distinct_rows, innermost_marked
from lightning_perf.trace.trace import Trace

FROM_FP32 = (2.0, 4.0)
"""Smallest and largest speed-up of FP32 products without Tensor Cores, if the device is not known."""

FROM_FP32_BY_CAPABILITY = {(7, 0): 8.8, (8, 0): 17.6, (9, 0): 16.2, (10, 0): 33.0}
"""Largest speed-up of such products by compute capability, for a device without a row in
`lightning_perf.machine.hardware`, such as a slice of one (MIG). The values are those of V100, A100, H100 and B200,
by `product_speed_up`."""

FROM_TENSOR_CORES = (1.2, 2.0)
"""Smallest and largest speed-up of matrix products in TF32. Peak rates are 2 times apart, and 16-bit operands have half
the bytes. At 8192³ an H100 SXM reaches 1.8 times (416.6 and 762.9 TFLOP/s)."""

FROM_TF32_CONVOLUTIONS = (1.2, 4.0)
"""Smallest and largest speed-up of convolutions in TF32. NVIDIA publishes 938 and 2470 images/s for ResNet-50 in TF32
and in mixed precision with channels last on one A100 80GB, 2.63 times
(https://github.com/NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5, NGC 21.03). The other
kernels gain at most 2 times, so the convolutions gain about 3.4 times: 16-bit kernels need no change of layout around
them."""

FROM_THREE_PRODUCTS = (1.5, 6.0)
"""Smallest and largest speed-up of memory-efficient attention in FP32. It makes each FP32 product of three in TF32
(CUTLASS's ``OpMultiplyAddFastF32``, in PyTorch's ``transformers/cuda/mem_eff_attention/gemm_kernel_utils.h``)."""

HALF_THE_BYTES = (1.0, 2.0)
"""Smallest and largest speed-up of kernels that only move data."""

MAY_GO_AWAY = (1.0, np.inf)
"""Smallest and largest speed-up of changes of layout around convolutions. FP32 kernels of cuDNN without Tensor Cores
work in channels first. So a model in channels last has changes of layout in FP32 and none in 16 bits. On
an H200, ResNet-50 at batch 128 spends 12.5 ms of its 127 ms steps in them in FP32, and nothing in FP16."""

CAST_BYTES = 12
"""Bytes that casts move for each element. For the forward pass, a weight is read in 4 bytes and written in 2. Its
gradient is read in 2 and written in 4. The input of an operator that autocast keeps in FP32 is read in 2 bytes and
written in 4, and its result the other way round."""

KEPT_IN_FP32 = frozenset(
    f"aten::{name}"
    for name in (
        "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
        "_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data",
    )
)  # fmt: skip
"""Operators between products that autocast keeps in FP32
(https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32). The first input has as many
elements as the result."""

_OPTIMIZER = PHASES.index("optimizer")

MAX_DEPTH = 8
"""Operators around a kernel, from the inside out, that may say which part it belongs to."""

PartName = Literal["products", "products on Tensor Cores", "following", "fixed", "in 16 bits"]


class AmpPart(Struct, frozen=True):
    """A part of the compute time.

    Attributes:
        name: The part.
        kernels: Kernels in it, over all averaged steps.
        time_ns: Their time.
        fastest_ns: Their shortest time in mixed precision.
        slowest_ns: Their longest time in mixed precision.
    """

    name: PartName
    kernels: int
    time_ns: int
    fastest_ns: float
    slowest_ns: float


class AmpGain(Struct, frozen=True):
    """The expected gain of mixed precision.

    Attributes:
        device: The device, as in `hardware`. None if its peak rates are not known; general factors are then used.
        steps: The number of averaged steps.
        step_ns: Mean step time.
        parts: The parts of the compute time, over all averaged steps.
        casts_ns: Time per step of the casts that autocast adds, at full bandwidth: of weights and their gradients, and
            around the operators that it keeps in FP32. 0 if the device or the shapes are not known.
        least_saving_ns: Saving per step, lower end. Below 0 if the casts may cost more than the rest saves.
        most_saving_ns: Saving per step, upper end.
    """

    device: str | None
    steps: int
    step_ns: float
    parts: tuple[AmpPart, ...]
    casts_ns: float
    least_saving_ns: float
    most_saving_ns: float

    @property
    def speedup(self) -> tuple[float, float]:
        """Smallest and largest speed-up of a step; 1.25 is a step in four fifths of the time."""
        return self.step_ns / (self.step_ns - self.least_saving_ns), self.step_ns / (self.step_ns - self.most_saving_ns)


def amp_gain(trace: Trace, steps: Breakdown, launches: Launches | None, pace: HostPace | None) -> AmpGain | None:
    """Predict the gain of mixed precision.

    None for a recording without compute kernels or steps, for a truncated one, and for one that is in 16 bits already.
    """
    kernels = np.flatnonzero(trace.device.is_compute & in_averaged_steps(trace, trace.device.start_ns))
    step_ns = steps.wall.mean_ns
    number = int(averaged_steps(trace).sum())
    if not len(kernels) or not number or not step_ns or trace.problems.lacks_work:
        return None
    properties = device_properties(trace, int(trace.device.device[kernels[0]]))
    peak = find_device(properties.name, properties.total_memory_bytes)
    parts, cast = _parts(trace, kernels, peak, _speed_up_of_unlisted(properties))
    half_ns = sum(part.time_ns for part in parts if part.name == "in 16 bits")
    total_ns = sum(part.time_ns for part in parts)
    if not total_ns or half_ns > total_ns / 2:
        return None
    casts_ns = CAST_BYTES * cast / number / peak.bandwidth_bytes_per_s * 1e9 if peak is not None else 0.0
    least_ns = sum(part.time_ns - part.slowest_ns for part in parts) / number - casts_ns
    most_ns = sum(part.time_ns - part.fastest_ns for part in parts) / number
    exposed_ns = steps.category("device_compute").mean_ns or 0.0
    shown = min(1.0, exposed_ns / (total_ns / number))
    if launches is not None and launches.launch_bound is not None:
        shown *= 1 - launches.launch_bound.share
    least_ns, most_ns = bounded_by_host(least_ns * shown, most_ns * shown, step_ns, pace)
    return AmpGain(
        device=peak.name if peak is not None else None,
        steps=number,
        step_ns=step_ns,
        parts=parts,
        casts_ns=casts_ns,
        least_saving_ns=least_ns,
        most_saving_ns=most_ns,
    )


def _speed_up_of_unlisted(device: DeviceProperties) -> tuple[float, float]:
    """Return the speed-up of FP32 products on a device without known peak rates."""
    if is_amd(device.name) or device.compute_major is None or device.compute_minor is None:
        return FROM_FP32
    least, most = FROM_FP32
    return least, FROM_FP32_BY_CAPABILITY.get((device.compute_major, device.compute_minor), most)


def _parts(
    trace: Trace, kernels: Int64Array, peak: DevicePeak | None, unlisted: tuple[float, float]
) -> tuple[tuple[AmpPart, ...], int]:
    """Return the parts, and how many elements autocast would cast."""
    owner = _owners(trace, kernels)
    owned = owner != NO_ROW
    sharing = np.bincount(owner[owned], minlength=1)  # kernels that one operator launched
    time = trace.device.duration_ns[kernels].astype(np.float64)
    # The deciding properties are the same for thousands of kernels: operator, shapes, arithmetic, name, place, and the
    # number of kernels that share the operator's operands.
    columns = (
        at_rows(trace.operators.name, owner, NO_ROW),
        at_rows(trace.operators.input_shapes, owner, NO_ROW),
        arithmetic_of(trace, kernels),
        trace.device.name[kernels],
        (launch_phases(trace)[kernels] == _OPTIMIZER).astype(np.int8),  # and not by a closure that it runs
        at_rows(sharing, owner, 0),
    )
    first, index = distinct_rows(*columns)
    kinds = list(zip(*(column[first].tolist() for column in columns), strict=True))
    names: list[PartName] = []
    factors = np.ones((len(kinds), 2))
    read_ns = np.zeros(len(kinds))
    for row, (name, shapes, code, kernel, stepping, shared) in enumerate(kinds):
        operator = trace.names[name] if name != NO_ROW else ""
        part = _part(operator, ARITHMETICS[code], trace.names[kernel], bool(stepping), trace.shape_lists[shapes])
        names.append(part)
        factors[row] = _factors(part, operator, ARITHMETICS[code], trace.names[kernel], peak, unlisted)
        if peak is not None and shared and part in ("products", "products on Tensor Cores", "following"):
            read_ns[row] = 2 * _elements(trace.shape_lists[shapes]) / shared / peak.bandwidth_bytes_per_s * 1e9
    read = np.minimum(read_ns[index], time)
    fastest = np.maximum(time / factors[index, 1], read)
    slowest = np.maximum(time / factors[index, 0], fastest)
    parts = []
    for part in dict.fromkeys(names):
        rows = np.array([name == part for name in names])[index]
        total_ns, fastest_ns, slowest_ns = (float(values[rows].sum()) for values in (time, fastest, slowest))
        parts.append(AmpPart(part, int(rows.sum()), int(total_ns), fastest_ns, slowest_ns))
    parts.sort(key=lambda part: -part.time_ns)
    return tuple(parts), _cast_elements(trace, np.unique(owner[owned]))


def _part(operator: str, arithmetic: str, kernel: str, in_optimizer: bool, shapes_json: str) -> PartName:
    if arithmetic in ("fp16", "bf16", "fp8", "fp4"):
        return "in 16 bits"
    if in_optimizer or arithmetic not in ("fp32", "tf32"):
        return "fixed"
    if operator in _PRODUCTS and not (moves_data(kernel) or is_depthwise(operator, shapes_json)):
        on_tensor_cores = arithmetic == "tf32" or kernel_arithmetic(kernel).tensor_cores
        return "products on Tensor Cores" if on_tensor_cores else "products"
    return "following" if operator in _PRODUCTS | TYPE_FOLLOWING else "fixed"


_CONVOLUTIONS = CONVOLUTIONS | BACKWARD_CONVOLUTIONS.keys()
_PRODUCTS = FORMULAS.keys() | _CONVOLUTIONS


def _factors(
    part: PartName, operator: str, arithmetic: str, kernel: str, peak: DevicePeak | None, unlisted: tuple[float, float]
) -> tuple[float, float]:
    if part == "following":
        return MAY_GO_AWAY if changes_layout(kernel) else HALF_THE_BYTES
    if part == "products on Tensor Cores":
        if arithmetic == "tf32" and "fmha_cutlass" in kernel:
            return FROM_THREE_PRODUCTS
        return FROM_TF32_CONVOLUTIONS if operator in _CONVOLUTIONS else FROM_TENSOR_CORES
    if part != "products":
        return 1.0, 1.0
    return (product_speed_up(peak, arithmetic, "fp16") if peak is not None else None) or unlisted


def _owners(trace: Trace, kernels: Int64Array) -> Int64Array:
    """Return for each kernel the innermost operator that shows its purpose, or else the one that launched it."""
    telling = trace.names_where((_PRODUCTS | TYPE_FOLLOWING).__contains__)
    first = trace.links.device_operator[kernels].astype(np.int64)
    owner, at = first.copy(), first.copy()
    found = np.zeros(len(first), dtype=np.bool_)
    for _ in range(MAX_DEPTH):
        known = (at != NO_ROW) & ~found
        tells = known.copy()
        tells[known] = telling[trace.operators.name[at[known]]]
        owner[tells] = at[tells]
        found |= tells
        at[known] = trace.links.operator_parent[at[known]]
    return owner


def _cast_elements(trace: Trace, operators: Int64Array) -> int:
    """Count the elements that autocast casts, each call counted.

    These are the weights of forward convolutions and of products with a bias, and the results of products that
    operators in FP32 read.
    """
    shapes = np.int64(max(len(trace.shape_lists), 1))
    keys = trace.operators.name[operators] * shapes + trace.operators.input_shapes[operators]
    total = 0
    for key, calls in zip(*(part.tolist() for part in np.unique(keys, return_counts=True)), strict=True):
        name = trace.names[key // int(shapes)]
        place = 1 if name in CONVOLUTIONS else 0 if name in KEPT_IN_FP32 else _WEIGHT_PLACES.get(name)
        operands = json_shapes(trace.shape_lists[key % int(shapes)])
        if place is not None and len(operands) > place:
            total += calls * prod(operands[place])
    return total


_WEIGHT_PLACES = {"aten::addmm": 2, "aten::linear": 1}


def _elements(shapes_json: str) -> int:
    return sum(prod(shape) for shape in json_shapes(shapes_json) if shape)


class AmpCheck(Struct, frozen=True):
    """A prediction and the measured result.

    Attributes:
        predicted: Smallest and largest predicted speed-up.
        measured: Step time in FP32 over that in mixed precision.
        held: Whether the measured speed-up is within the predicted range.
    """

    predicted: tuple[float, float]
    measured: float
    held: bool


def check_prediction(gain: AmpGain, mixed_step_ns: float, fp32_step_ns: float | None = None) -> AmpCheck:
    """Compare a prediction with the step time measured in mixed precision.

    Args:
        fp32_step_ns: Step time in FP32, if both were measured without the profiler, which slows down the shorter steps
            of mixed precision more. None for that of the recording.
    """
    if not mixed_step_ns > 0:
        raise ValueError(f"mixed_step_ns={mixed_step_ns} must be above 0: pass the mean step time of the mixed run")
    low, high = gain.speedup
    measured = (fp32_step_ns or gain.step_ns) / mixed_step_ns
    return AmpCheck((low, high), measured, low <= measured <= high)


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
        copy[operators.name] & is_pair[operators.input_types] & in_averaged_host_steps(trace, operators.start_ns)
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
    gradient &= in_averaged_host_steps(trace, operators.start_ns)
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
