"""Runtime calls: whether a call launches work, waits for the device, allocates memory, or does something else."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from lightning_perf.trace.columns import NO_ROW, matched_part
from lightning_perf.trace.indexing import used_codes
from lightning_perf.trace.trace import Trace

__all__ = ["RuntimeKind", "call_kind", "runtime_kinds"]


class RuntimeKind(IntEnum):
    """The purpose of a runtime or driver call, in the order of priority in the step-time breakdown."""

    LAUNCH = 0
    SYNC = 1
    ALLOC = 2
    OTHER = 3


# The host blocks in `cuda…Synchronize`, `cu…Synchronize`, `hip…Synchronize`, and in copies between host and device that
# are not called asynchronous (`.item()` on AMD is a `hipMemcpyWithStream`). Copies between devices, event queries and
# `cudaStreamWaitEvent` return at once. See https://docs.nvidia.com/cuda/cuda-runtime-api/ ("API synchronization
# behavior") and https://rocm.docs.amd.com/projects/HIP/. On Intel it blocks in Level Zero's `ze…Synchronize` and in
# Unified Runtime's `urEventWait` and `urQueueFinish`: https://oneapi-src.github.io/unified-runtime/core/api.html
_SYNC = re.compile(
    r"^(cuda|cu|hip)(\w*Synchronize|Memcpy(?!\w*(Async|DtoD|DeviceToDevice|Peer)))"
    r"|^ze\w*Synchronize|^ur(EventWait|QueueFinish)$",
    re.IGNORECASE,
)
_ALLOC = re.compile(
    r"^(cuda|hip)(Ext)?(Host)?(Malloc|Free|Alloc|Register|Unregister)"
    r"|^cu(Mem(Alloc|Free|HostAlloc|Create|Release|Map|Unmap|SetAccess|Address(Reserve|Free))|MemHost)"
    r"|^urUSM\w*(Alloc|Free)|^zeMem(Alloc|Free)",
    re.IGNORECASE,
)


def call_kind(name: str) -> RuntimeKind:
    """Return the purpose of a call that launches nothing, by its name.

    Example:
        >>> [call_kind(name).name for name in ("cudaStreamSynchronize", "hipMalloc", "cudaStreamWaitEvent")]
        ['SYNC', 'ALLOC', 'OTHER']
        >>> [call_kind(name).name for name in ("hipMemcpyWithStream", "cudaMemcpyAsync")]
        ['SYNC', 'OTHER']
    """
    name = matched_part(name)
    if _SYNC.match(name):
        return RuntimeKind.SYNC
    return RuntimeKind.ALLOC if _ALLOC.match(name) else RuntimeKind.OTHER


def runtime_kinds(trace: Trace) -> NDArray[np.uint8]:
    """Return the `RuntimeKind` of each row of `Trace.runtime`. `Links.is_launch` says which rows launch work.

    A copy to pageable memory returns only when it is done, even if its call is named asynchronous
    (https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html).
    """
    kind_of_name = np.full(len(trace.names) + 1, RuntimeKind.OTHER, dtype=np.uint8)
    for code in used_codes(trace.runtime.name):
        kind_of_name[code] = call_kind(trace.names[code])
    kinds: NDArray[np.uint8] = kind_of_name[trace.runtime.name]
    to_pageable = trace.names_where(lambda name: name.endswith("-> Pageable)"))[trace.device.name]
    call = trace.links.device_runtime[to_pageable]
    kinds[call[call != NO_ROW]] = RuntimeKind.SYNC
    kinds[trace.links.is_launch] = RuntimeKind.LAUNCH
    return kinds
