"""Arithmetic: the number formats of the device's computing, and how much of it ran on Tensor Cores.

Where an operator's types and the kernel's name differ, the name decides: a TF32 kernel multiplies FP32 in TF32.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.analysis.core.arrays import find_row, json_list, sum_by
from lightning_perf.analysis.core.averaged_steps import averaged_steps, in_averaged_steps, share_of
from lightning_perf.analysis.kernels.kernel_names import KernelArithmetic, kernel_arithmetic
from lightning_perf.analysis.kernels.tensor_core_eligibility import EligibleUnused, eligible_unused
from lightning_perf.trace.columns import Int64Array
from lightning_perf.trace.indexing import at_rows, distinct
from lightning_perf.trace.trace import Trace

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
