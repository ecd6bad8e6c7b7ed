"""The type of a collective, from its many names, and the formulas of its bandwidth.

They are those of nccl-tests (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). The *algorithm
bandwidth* is size over time. The *bus bandwidth* corrects it for the amount that each rank must move.
"""

from __future__ import annotations

import math
import re
from typing import Literal

from lightning_perf.analysis.core.arrays import json_list
from lightning_perf.trace.columns import matched_part

CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv", "other"
]

# `allreduce`, `_allgather_base`, `ncclDevKernel_ReduceScatter_Sum_f32_RING_LL`, `multimem_all_reduce_kernel`, …: the
# first matching rule counts, so a name that is part of another's comes after it.
_KINDS: tuple[tuple[CollectiveKind, re.Pattern[str]], ...] = (
    ("all_reduce", re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE)),
    ("all_gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    # DeepEP's dispatch sends tokens to the ranks of their experts, and combine sends the results back.
    ("all_to_all", re.compile(r"all_?to_?all|moea2a|dispatch|combine", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce", re.IGNORECASE)),
    ("send_recv", re.compile(r"send|recv", re.IGNORECASE)),
)

# Names of torch's ScalarType (https://github.com/pytorch/pytorch, ``c10/core/ScalarType.h``).
_ELEMENT_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8,
    "ComplexHalf": 4, "ComplexFloat": 8, "ComplexDouble": 16, "UInt16": 2, "UInt32": 4, "UInt64": 8,
}  # fmt: skip

# Names of C++ types in the inputs of operators and annotations.
_TYPE_BYTES = {
    "unsigned char": 1, "signed char": 1, "bool": 1, "short": 2, "short int": 2, "c10::Half": 2, "c10::BFloat16": 2,
    "int": 4, "float": 4, "long": 8, "long int": 8, "double": 8, "c10::complex<float>": 8, "c10::complex<double>": 16,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip


def collective_kind(name: str) -> CollectiveKind:
    """Return the type of a collective or its kernel, from its name."""
    return next((kind for kind, pattern in _KINDS if pattern.search(matched_part(name))), "other")


def is_host_collective(name: str) -> bool:
    """Return whether an annotation marks a collective that runs on the host. NCCL's annotations mark only its issue.

    Example:
        >>> is_host_collective("gloo:all_reduce"), is_host_collective("nccl:all_reduce")
        (True, False)
    """
    return name.startswith(("gloo:", "mpi:", "ucc:"))


def is_device_collective(name: str) -> bool:
    """Return whether an annotation marks the call of a collective that runs on the device.

    Example:
        >>> is_device_collective("nccl:all_reduce"), is_device_collective("gloo:all_reduce")
        (True, False)
    """
    return name.startswith("nccl:")


def element_bytes(dtype: str) -> int | None:
    """Return the size of one element of a torch data type; None for an unknown one."""
    return 1 if dtype.startswith("Float8") else _ELEMENT_BYTES.get(dtype)


def collective_bytes(kind: CollectiveKind, in_elements: int, out_elements: int, dtype: str) -> int | None:
    """Return the size of a collective as nccl-tests counts it: of the larger buffer, gathered or unscattered."""
    size = element_bytes(dtype)
    elements = out_elements if kind == "all_gather" else in_elements
    return size * elements if size is not None and elements > 0 else None


def message_bytes(types_json: str, shapes_json: str) -> int | None:
    """Return the size of a collective's tensors from the inputs of its annotation; None for unknown types or none."""
    total = 0
    types, shapes = json_list(types_json), json_list(shapes_json)
    for name, shape in zip(types, shapes, strict=False):
        size = _TYPE_BYTES.get(name) if isinstance(name, str) else None
        if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
            return None
        if size is None:
            if name in ("Scalar", ""):
                continue
            return None
        total += size * math.prod(shape)
    return total or None


def bus_factor(kind: CollectiveKind, ranks: int) -> float | None:
    """Return bus bandwidth over algorithm bandwidth; None for fewer than two ranks or an unknown collective."""
    if ranks < 2 or kind == "other":
        return None
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if kind in ("all_gather", "reduce_scatter", "all_to_all") else 1.0
