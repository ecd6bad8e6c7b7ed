"""The number format of each kernel, and products that could run on Tensor Cores but do not."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.analysis.intervals import (
    averaged_steps,
    find_row,
    in_averaged_steps,
    json_list,
    json_shapes,
    largest_codes,
    share_of,
    sum_by,
)
from lightning_perf.analysis.kernels.kernel_names import KernelArithmetic, is_product, kernel_arithmetic
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int64Array, matched_part
from lightning_perf.trace.description import DeviceProperties
from lightning_perf.trace.indexing import at_rows, distinct, distinct_rows, innermost_marked, used_codes
from lightning_perf.trace.trace import Trace


def device_properties(trace: Trace, ordinal: int) -> DeviceProperties:
    """Return the properties of one device; without any if the recording does not describe it.

    Under HIP, and with visible devices restricted, kernels can have an ordinal without a described device. If all
    described devices are of one kind, it is of that kind too.
    """
    devices = trace.metadata.devices
    for device in devices:
        if device.ordinal == ordinal:
            return device
    return devices[0] if len({device.name for device in devices}) == 1 else DeviceProperties(ordinal)


REASONS: dict[str, str] = {
    "device_has_none": "the device has no Tensor Cores",
    "fp64_inputs": "the inputs are FP64",
    "fp32_only_operator": "autocast keeps this operator in FP32",
    "tf32_off": "the inputs are FP32 and TF32 is off",
    "fp32_inputs": "the inputs are FP32 and the device has no TF32, so only 16-bit inputs would use them",
    "dimensions": "a dimension is not a multiple of 8 (FP16, BF16), 16 (INT8, FP8) or 4 (TF32)",
    "shapes_not_recorded": "the types fit, but without recorded shapes the dimensions are not known",
    "library_choice": "types and dimensions fit, but the library chose another kernel",
}
"""Reasons for a product to run without Tensor Cores."""

_REASON_NAMES = tuple(REASONS)

# Multiples of 16 bytes let every algorithm use Tensor Cores:
# https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/#requirements-tc
_MULTIPLE = {"fp16": 8, "bf16": 8, "int8": 16, "fp8": 16, "fp32": 4, "tf32": 4}

# Operators that autocast runs in FP32 and that multiply matrices inside:
# https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32
_FP32_ONLY = re.compile(
    r"^aten::(_?cdist\w*|_euclidean_dist|pdist|linalg_\w+|_linalg_\w+|cholesky\w*|inverse|pinverse|stft|istft|renorm)$"
)

# TF32 has one switch for cuDNN and MIOpen (convolutions, recurrent layers) and another for matrix products
# (https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices). The operator
# decides which one counts, because a 1 × 1 convolution runs in a kernel that is named like a matrix product. PyTorch's
# own convolutions (``slow_conv``) call such products. Memory-efficient attention ignores both switches.
_CUDNN_OPERATOR = re.compile(r"^aten::.*((?<!slow_)(?<!thnn_)conv|cudnn|miopen)")
_MATMUL_OPERATOR = re.compile(r"^aten::(\w*mm|\w*mv|matmul|linear|dot|einsum|_?(slow|thnn)_conv\w*)$")
_CUDNN_KERNEL = re.compile(r"conv|cudnn|grad_engine|dgrad|wgrad|fprop|igemm", re.IGNORECASE)
_ATTENTION_KERNEL = re.compile(r"fmha|flash|attn|attention|sdpa", re.IGNORECASE)


class _Switch(IntEnum):
    """The switch that decides on TF32."""

    NONE = 0
    CUDNN = 1
    MATMUL = 2


class EligibleUnused(Struct, frozen=True):
    """Matrix products without Tensor Cores, for one reason.

    Attributes:
        reason: A key of `REASONS`.
        time_ns: Their time, over all averaged steps.
        kernels: Their number.
        operators: The operators that launched most of it, the longest time first, at most five.
    """

    reason: str
    time_ns: int
    kernels: int
    operators: tuple[str, ...]


def has_tensor_cores(device: DeviceProperties) -> bool | None:
    """Return whether a device has Tensor Cores (AMD: Matrix Cores); ``None`` if the recording does not show it.

    NVIDIA: compute capability 7.0 and up, without the GTX 16 series (https://developer.nvidia.com/cuda-gpus). AMD: the
    Instinct series from the MI100 on (https://rocm.docs.amd.com/en/latest/conceptual/gpu-arch/mi100.html).
    """
    name = device.name or ""
    if "AMD" in name or "Radeon" in name or "Instinct" in name:
        # HIP reports gfx9 as 9, so that MI50 and MI300 look alike. Names mostly differ.
        return False if re.search(r"MI(25|50|60)\b", name) else True if re.search(r"MI\d{3}", name) else None
    if device.compute_major is None:
        return None
    return device.compute_major >= 7 and re.search(r"GTX 16\d\d", name) is None


def eligible_unused(trace: Trace, kernels: Int64Array) -> tuple[EligibleUnused, ...]:
    """Find matrix products that ran without Tensor Cores."""
    rows, reason = unused_reasons(trace, kernels)
    operator = at_rows(trace.operators.name, trace.links.device_operator[rows], NO_ROW)
    caller = np.where(operator == NO_ROW, trace.device.name[rows], operator)
    duration = trace.device.duration_ns[rows]
    unused = []
    for code in np.unique(reason).tolist():
        chosen = reason == code
        callers, index = distinct(caller[chosen])
        spent = sum_by(index, duration[chosen], len(callers)).tolist()
        most = sorted((-time_ns, trace.names[each]) for time_ns, each in zip(spent, callers.tolist(), strict=True))[:5]
        names = tuple(name for _, name in most)
        unused.append(EligibleUnused(_REASON_NAMES[code], sum(spent), int(chosen.sum()), names))
    return tuple(sorted(unused, key=lambda row: (-row.time_ns, row.reason)))


def unused_reasons(trace: Trace, kernels: Int64Array) -> tuple[Int64Array, NDArray[np.int8]]:
    """Find matrix products that ran without Tensor Cores, one by one."""
    plain = np.zeros(len(trace.names), dtype=np.bool_)
    in_tf32 = np.zeros(len(trace.names), dtype=np.bool_)
    for code in used_codes(trace.device.name[kernels]):
        name = trace.names[code]
        if is_product(name):
            told = kernel_arithmetic(name)
            plain[code] = told.tensor_cores is False
            in_tf32[code] = told.arithmetic == "tf32"
    on = set(_switches(trace, kernels[in_tf32[trace.device.name[kernels]]]).tolist()) - {_Switch.NONE}
    rows = kernels[plain[trace.device.name[kernels]]]
    if not len(rows):
        return rows, np.zeros(0, dtype=np.int8)
    operator = trace.links.device_operator[rows]
    fp32_only = trace.rows_where(trace.operators.name, lambda name: _FP32_ONLY.match(matched_part(name)) is not None)
    kept_in_fp32 = innermost_marked(trace.links.operator_parent, operator, fp32_only) != NO_ROW
    shapes = at_rows(trace.operators.input_shapes, operator, 0)
    kept, device_of = kept_in_fp32.astype(np.int8), trace.device.device[rows]
    columns = (trace.device.name[rows], shapes, kept, device_of, _switches(trace, rows))
    first, index = distinct_rows(*columns)
    reasons = np.zeros(len(first), dtype=np.int8)
    groups = zip(*(column[first].tolist() for column in columns), strict=True)
    for group, (code, shape, in_fp32, ordinal, switch) in enumerate(groups):
        device = device_properties(trace, ordinal)
        why = _reason(trace.names[code], trace.shape_lists[shape], bool(in_fp32), device, switch in on)
        reasons[group] = _REASON_NAMES.index(why)
    return rows, reasons[index]


def uses_tf32(trace: Trace) -> tuple[bool, bool]:
    """Return whether FP32 matrix products, and convolutions with recurrent layers, may use TF32, by their kernels.

    Without FP32 products of a kind, torch's default counts: off for matrix products, on for convolutions.
    """
    kernels = np.flatnonzero(trace.device.is_compute & trace.rows_where(trace.device.name, is_product))
    arithmetic = np.array([kernel_arithmetic(name).arithmetic or "" for name in trace.names], dtype=np.str_)
    of_kernel = arithmetic[trace.device.name[kernels]]
    in_tf32, in_fp32 = (set(_switches(trace, kernels[of_kernel == kind]).tolist()) for kind in ("tf32", "fp32"))
    return _Switch.MATMUL in in_tf32, _Switch.CUDNN in in_tf32 or _Switch.CUDNN not in in_fp32


def _reason(name: str, shapes_json: str, kept_in_fp32: bool, device: DeviceProperties, tf32_is_on: bool) -> str:
    arithmetic = kernel_arithmetic(name).arithmetic
    if has_tensor_cores(device) is False:
        return "device_has_none"
    if arithmetic == "fp64":
        return "fp64_inputs"
    if kept_in_fp32:
        return "fp32_only_operator"
    if arithmetic == "fp32" and not tf32_is_on:
        ampere = device.compute_major is not None and device.compute_major >= 8
        return "tf32_off" if ampere else "fp32_inputs"
    if not shapes_json:
        return "shapes_not_recorded"
    multiple = _MULTIPLE.get(arithmetic or "")
    uneven = multiple is not None and any(size % multiple for size in _sizes(shapes_json))
    return "dimensions" if uneven else "library_choice"


@lru_cache(maxsize=65536)
def _sizes(shapes_json: str) -> tuple[int, ...]:
    """Return the sizes that an instruction's shape must divide: rows and columns, or channels of convolutions."""
    tensors = [shape for shape in json_shapes(shapes_json) if len(shape) >= 2][:3]
    if any(len(shape) >= 4 for shape in tensors):
        return tuple(shape[1] for shape in tensors if len(shape) >= 4)
    return tuple(size for shape in tensors for size in shape[-2:])


def _switches(trace: Trace, rows: Int64Array) -> NDArray[np.int8]:
    """Return the `_Switch` of each kernel: by its operator, or by its name if the operator does not show it."""
    kernels, operator = trace.device.name[rows], trace.links.device_operator[rows]
    operators = at_rows(trace.operators.name, operator, 0)
    by_name, by_operator = np.zeros((2, len(trace.names)), dtype=np.int8)
    for code in used_codes(kernels):
        by_name[code] = _kernel_switch(trace.names[code])
    for code in used_codes(operators):
        by_operator[code] = _operator_switch(trace.names[code])
    told = by_operator[operators]
    told[operator == NO_ROW] = _Switch.NONE
    found: NDArray[np.int8] = np.where(told == _Switch.NONE, by_name[kernels], told)
    return found


def _operator_switch(name: str) -> _Switch:
    name = matched_part(name)
    if _MATMUL_OPERATOR.match(name):
        return _Switch.MATMUL
    return _Switch.CUDNN if _CUDNN_OPERATOR.match(name) else _Switch.NONE


def _kernel_switch(name: str) -> _Switch:
    name = matched_part(name)
    if _ATTENTION_KERNEL.search(name):
        return _Switch.NONE
    return _Switch.CUDNN if _CUDNN_KERNEL.search(name) else _Switch.MATMUL


def on_tensor_cores(trace: Trace, rows: Int64Array) -> BoolArray:
    """Return whether each piece of device work runs on Tensor Cores, as far as the name of its kernel shows it."""
    named = trace.rows_where(trace.device.name[rows], lambda name: kernel_arithmetic(name).tensor_cores is True)
    return named & trace.device.is_compute[rows]


def most_reasons(trace: Trace, rows: Int64Array, group: NDArray[np.integer[Any]]) -> dict[int, str]:
    """Return for each group of device work why most of its products without Tensor Cores run without them."""
    compute = trace.device.is_compute[rows]
    products, reason = unused_reasons(trace, rows[compute])
    place = np.searchsorted(rows, products)
    codes = largest_codes(group[place], reason, trace.device.duration_ns[products])
    return {g: _REASON_NAMES[code] for g, code in codes.items()}


ARITHMETICS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "integer", "unknown")
"""Every kind of arithmetic, in order of display. ``int8`` is quantized, ``integer`` any other (indices, masks)."""

_TYPES = {
    "double": "fp64", "float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16", "c10::complex<double>": "fp64",
    "c10::complex<float>": "fp32", "c10::complex<c10::Half>": "fp16", "signed char": "int8", "c10::qint8": "int8",
    "c10::quint8": "int8", "unsigned char": "integer", "short": "integer", "short int": "integer", "int": "integer",
    "long": "integer", "long int": "integer", "bool": "integer",
}  # fmt: skip

_TYPE_FOLLOWING_NAMES = (
    "relu", "relu_", "threshold", "threshold_backward", "clamp_min", "clamp_min_", "clamp", "hardtanh", "hardtanh_",
    "hardtanh_backward", "leaky_relu", "leaky_relu_", "leaky_relu_backward", "gelu", "gelu_backward", "silu", "silu_",
    "silu_backward", "sigmoid", "sigmoid_", "sigmoid_backward", "tanh", "tanh_", "tanh_backward", "hardswish",
    "hardswish_", "hardswish_backward", "mish", "elu", "add", "add_", "sub", "mul", "mul_", "div", "cat",
    "native_dropout", "native_dropout_backward", "dropout", "batch_norm", "cudnn_batch_norm", "native_batch_norm",
    "cudnn_batch_norm_backward", "native_batch_norm_backward", "_batch_norm_impl_index", "miopen_batch_norm",
    "miopen_batch_norm_backward", "max_pool2d", "max_pool2d_with_indices", "max_pool2d_with_indices_backward",
    "avg_pool2d", "avg_pool2d_backward", "adaptive_avg_pool2d", "_adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward", "mean", "upsample_nearest2d", "upsample_nearest2d_backward",
    "upsample_bilinear2d", "upsample_bilinear2d_backward",
)  # fmt: skip
TYPE_FOLLOWING = frozenset(f"aten::{name}" for name in _TYPE_FOLLOWING_NAMES)
"""Operators that autocast does not change. They work in the type of their input, which the products before them leave
in 16 bits (https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference lists the others)."""


class ArithmeticTime(Struct, frozen=True):
    """The device time in one arithmetic.

    Attributes:
        name: One of `ARITHMETICS`.
        time_ns: Kernel time in it, over all averaged steps.
        share: Part of all compute kernel time, 0 to 1; ``None`` if the file is truncated or there is no compute.
        by_operator_ns: The part known from the launching operator's input types.
        by_name_ns: The part known only from the kernel's name, or in which the name differs from the operator.
    """

    name: str
    time_ns: int
    share: float | None
    by_operator_ns: int
    by_name_ns: int


class Arithmetic(Struct, frozen=True):
    """Device compute time by arithmetic.

    Times are sums over kernels that begin in an averaged step. Kernels that run at the same time count each.

    Attributes:
        rows: One row for each of `ARITHMETICS`. They sum to `compute_ns`.
        compute_ns: Time of all compute kernels, without collectives.
        steps: How many steps the times are over.
        tensor_core_ns: Time of kernels that run on Tensor Cores (Matrix Cores on AMD).
        tensor_core_share: Its part of `compute_ns`, 0 to 1; ``None`` if the file is truncated or there is no compute.
        tensor_core_unknown_ns: Time of kernels that may or may not run on them.
        eligible_unused: Time of matrix products that ran without Tensor Cores, by reason, the longest time first.
    """

    rows: tuple[ArithmeticTime, ...]
    compute_ns: int
    steps: int
    tensor_core_ns: int
    tensor_core_share: float | None
    tensor_core_unknown_ns: int
    eligible_unused: tuple[EligibleUnused, ...]

    def row(self, name: str) -> ArithmeticTime:
        """Return the row of one arithmetic, or raise a `KeyError` that lists them."""
        return find_row(self.rows, "arithmetic", name)


def arithmetic(trace: Trace) -> Arithmetic:
    """Divide the device compute time of a recording by arithmetic."""
    kernels = np.flatnonzero(trace.device.is_compute & in_averaged_steps(trace, trace.device.start_ns))
    time = trace.device.duration_ns[kernels]
    kinds, index = _kinds(trace, kernels)
    spent = sum_by(index, time, len(kinds))
    total = int(time.sum())
    told = {name: [0, 0] for name in ARITHMETICS}
    on_tensor_cores: dict[bool | None, int] = {True: 0, False: 0, None: 0}
    for kind, kind_ns in zip(kinds, spent.tolist(), strict=True):
        told[kind.arithmetic][0 if kind.by_operator else 1] += kind_ns
        on_tensor_cores[kind.tensor_cores] += kind_ns
    return Arithmetic(
        rows=tuple(
            ArithmeticTime(
                name, sum(parts), share_of(trace, sum(parts), total), *(parts if name != "unknown" else (0, 0))
            )
            for name, parts in told.items()
        ),
        compute_ns=total,
        steps=int(averaged_steps(trace).sum()),
        tensor_core_ns=on_tensor_cores[True],
        tensor_core_share=share_of(trace, on_tensor_cores[True], total),
        tensor_core_unknown_ns=on_tensor_cores[None],
        eligible_unused=eligible_unused(trace, kernels),
    )


def arithmetic_of(trace: Trace, device_rows: Int64Array) -> NDArray[np.uint8]:
    """Return the arithmetic of single compute kernels."""
    kinds, index = _kinds(trace, device_rows)
    codes = np.array([ARITHMETICS.index(kind.arithmetic) for kind in kinds], dtype=np.uint8)
    found: NDArray[np.uint8] = codes[index]
    return found


class _Kind(NamedTuple):
    """The properties of all kernels of one name under operators with one list of input types."""

    arithmetic: str
    by_operator: bool
    tensor_cores: bool | None


def _kinds(trace: Trace, device_rows: Int64Array) -> tuple[list[_Kind], NDArray[np.intp]]:
    """Return the kinds of kernels among the rows, and for each row the number of its kind."""
    lists = len(trace.type_lists)
    types = at_rows(trace.operators.input_types, trace.links.device_operator[device_rows], 0)
    keys = trace.device.name[device_rows] * np.int64(lists) + types
    different, index = distinct(keys)
    kinds = []
    for name, inputs in (divmod(key, lists) for key in different.tolist()):
        told = kernel_arithmetic(trace.names[name])
        found, by_operator = _decide(told, operand_arithmetic(trace.type_lists[inputs]), trace.metadata.is_hip)
        kinds.append(_Kind(found, by_operator, told.tensor_cores))
    return kinds, index


@lru_cache(maxsize=65536)
def operand_arithmetic(types_json: str) -> str | None:
    """Return the arithmetic of an operator's first floating input, or else of an integer; None without a known type."""
    found = [_type_arithmetic(t) for t in json_list(types_json) if isinstance(t, str)]
    return next((a for a in found if a not in (None, "integer")), "integer" if "integer" in found else None)


def _type_arithmetic(name: str) -> str | None:
    if name.startswith("c10::Float8"):
        return "fp8"
    return "fp4" if name.startswith("c10::Float4") else _TYPES.get(name)


def _decide(name: KernelArithmetic, operand: str | None, is_hip: bool) -> tuple[str, bool]:
    """Return the arithmetic, and whether the operator's types show it."""
    # A kernel of integers under a floating operator moves or indexes the operator's data.
    if name.arithmetic is None or (name.arithmetic == "integer" and operand is not None):
        if operand == "fp32" and name.tensor_cores and not is_hip:
            return "tf32", True  # NVIDIA's Tensor Cores take no FP32, but AMD's Matrix Cores do
        return operand or "unknown", operand is not None
    return name.arithmetic, name.arithmetic == operand
