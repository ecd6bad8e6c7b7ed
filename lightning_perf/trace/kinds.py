"""What an event is, from its category and name: the tables behind the reader's sorting."""

from __future__ import annotations

import re
from enum import Enum

from lightning_perf.trace.device_events import DeviceKind

__all__ = ["Destination", "destination", "device_kind", "is_annotation_name"]


class Destination(Enum):
    """The table that an event belongs to."""

    OPERATOR = "operator"
    ANNOTATION = "annotation"
    PYTHON = "python"
    RUNTIME = "runtime"
    KERNEL = "kernel"
    COPY = "copy"
    MEMSET = "memset"


# Kineto's activity names (libkineto/src/ActivityType.cpp), and what its versions of 2020–2021 wrote, in lower case.
_DESTINATIONS = {
    "cpu_op": Destination.OPERATOR,
    "operator": Destination.OPERATOR,
    "hpu_op": Destination.OPERATOR,
    "user_annotation": Destination.ANNOTATION,
    "python_function": Destination.PYTHON,
    "python function": Destination.PYTHON,
    "cuda_runtime": Destination.RUNTIME,
    "cuda_driver": Destination.RUNTIME,
    "runtime": Destination.RUNTIME,
    "driver": Destination.RUNTIME,
    "hip_runtime": Destination.RUNTIME,
    "hip_driver": Destination.RUNTIME,
    "xpu_runtime": Destination.RUNTIME,
    "xpu_driver": Destination.RUNTIME,
    "mtia_runtime": Destination.RUNTIME,
    "privateuse1_runtime": Destination.RUNTIME,
    "privateuse1_driver": Destination.RUNTIME,
    "glow_runtime": Destination.RUNTIME,
    "kernel": Destination.KERNEL,
    "concurrent_kernel": Destination.KERNEL,
    "gpu_memcpy": Destination.COPY,
    "memcpy": Destination.COPY,
    "gpu_memset": Destination.MEMSET,
    "memset": Destination.MEMSET,
}

# Before the category user_annotation existed, these ranges were written as operators (torch-tb-profiler, trace.py).
_ANNOTATION = re.compile(r"ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.(?:step|zero_grad)#")

_COLLECTIVE = re.compile(
    # NCCL and RCCL (ncclDevKernel_…, ncclKernel_…, rccl_…), MSCCL++, oneCCL, NVSHMEM, DeepEP
    r"nccl|rccl|mscclpp|mscclkernel|oneccl|nvshmem|deep_ep::"
    # PyTorch's symmetric memory (torch/csrc/distributed/c10d/CUDASymmetricMemoryOps.cu) and TensorRT-LLM's, vLLM's
    r"|multimem_(?:all|one_shot|reduce)|(?:one|two)_shot_all_(?:reduce|gather)|cross_device_reduce|oneshotallreduce"
    r"|twoshotallreduce|allreduce_fusion_kernel|quickreduce",
    re.IGNORECASE,
)

# CUPTI's `Memcpy HtoD`, AMD's `HostToDevice`, Intel's `Memcpy M2D` (M: host memory that the driver did not allocate).
_DIRECTION = re.compile(r"(?P<source>Host|Device|[HDPM])(?:To|to|2)(?P<target>Host|Device|[HDPM])")
_DIRECTIONS = {
    "HD": DeviceKind.H2D,
    "MD": DeviceKind.H2D,
    "DH": DeviceKind.D2H,
    "DM": DeviceKind.D2H,
    "DD": DeviceKind.D2D,
    "PP": DeviceKind.P2P,
}


def destination(category: str) -> Destination | None:
    """The table for a category, old or new, in any case; None for one that goes nowhere (``gpu_user_annotation``…).

    Example:
        >>> destination("Kernel"), destination("ac2g")
        (<Destination.KERNEL: 'kernel'>, None)
    """
    return _DESTINATIONS.get(category.lower())


def is_annotation_name(name: str) -> bool:
    """Whether an operator of this name is in truth a range that the framework marked (in old recordings)."""
    return _ANNOTATION.match(name) is not None


def device_kind(destination: Destination, name: str, direction: str) -> DeviceKind:
    """What a piece of device work is.

    Args:
        destination: KERNEL, COPY or MEMSET.
        name: The event's name.
        direction: The ``kind`` among the arguments of a copy (AMD), else empty.

    Example:
        >>> device_kind(Destination.COPY, "Memcpy HtoD (Pinned -> Device)", "")
        <DeviceKind.H2D: 2>
    """
    if destination is Destination.MEMSET:
        return DeviceKind.MEMSET
    if destination is Destination.KERNEL:
        return DeviceKind.COLLECTIVE if _COLLECTIVE.search(name) else DeviceKind.COMPUTE
    found = _DIRECTION.search(name) or _DIRECTION.search(direction)
    return _DIRECTIONS.get(found["source"][0] + found["target"][0], DeviceKind.COPY) if found else DeviceKind.COPY
