"""Predicted gain of mixed precision, from a recording in FP32 or TF32, as an interval with its bounds.

Every compute kernel belongs to one of four parts:

- Matrix products move to 16-bit Tensor Cores.
- Kernels on the results of products (activations, batch norm, pooling) and convolutions that memory bounds (depthwise
  ones, changes of layout) move half the bytes.
- Kernels that autocast keeps in FP32, the optimizer and integer work stay the same.
- Kernels in 16 bits already stay the same too.

Host, input, launches and idle time stay the same, so only the exposed part of compute can shrink (Amdahl, AFIPS 1967).
"""

from __future__ import annotations

from math import prod
from typing import Literal

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.core.arrays import json_shapes
from lightning_perf.analysis.core.intervals import averaged_steps, in_averaged_steps
from lightning_perf.analysis.host.launches import HostPace, Launches, bounded_by_host
from lightning_perf.analysis.kernels.arithmetic import ARITHMETICS, TYPE_FOLLOWING, arithmetic_of, device_properties
from lightning_perf.analysis.kernels.flops import BACKWARD_CONVOLUTIONS, CONVOLUTIONS, FORMULAS, is_depthwise
from lightning_perf.analysis.kernels.kernel_names import kernel_arithmetic, moves_data
from lightning_perf.analysis.steps.breakdown import Breakdown
from lightning_perf.analysis.steps.phase_timeline import PHASES, launch_phases
from lightning_perf.machine.hardware import DevicePeak, find_device, is_amd, product_speed_up
from lightning_perf.trace.columns import NO_ROW, Int64Array
from lightning_perf.trace.description import DeviceProperties
from lightning_perf.trace.indexing import at_rows, distinct_rows
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
        return HALF_THE_BYTES
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


def check_prediction(gain: AmpGain, mixed_step_ns: float) -> AmpCheck:
    """Compare a prediction with the step time measured in mixed precision."""
    if not mixed_step_ns > 0:
        raise ValueError(f"mixed_step_ns={mixed_step_ns} must be above 0: pass the mean step time of the mixed run")
    low, high = gain.speedup
    measured = gain.step_ns / mixed_step_ns
    return AmpCheck((low, high), measured, low <= measured <= high)
