"""The categories of step time, the purposes of runtime calls, and when the host is in each."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from lightning_perf.analysis.core.averaged_steps import cached_per_trace
from lightning_perf.analysis.core.intervals import EMPTY, Intervals, merge
from lightning_perf.analysis.steps.phase_timeline import marks_by_phase
from lightning_perf.trace.columns import NO_ROW, DeviceKind, matched_part
from lightning_perf.trace.indexing import used_codes
from lightning_perf.trace.trace import Trace


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
    """Return the purpose of a call that launches nothing, by its name."""
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


CATEGORIES: tuple[tuple[str, str | None], ...] = (
    ("device_compute", None),
    ("communication", None),
    ("memcpy", None),
    ("memcpy_h2d", "memcpy"),
    ("memcpy_d2h", "memcpy"),
    ("memcpy_d2d", "memcpy"),
    ("memcpy_p2p", "memcpy"),
    ("memcpy_unknown", "memcpy"),
    ("memset", None),
    ("input", None),
    ("kernel_launch", None),
    ("runtime", None),
    ("runtime_sync", "runtime"),
    ("runtime_alloc", "runtime"),
    ("runtime_other", "runtime"),
    ("host_compute", None),
    ("host_other", None),
)
"""Every category and its parent, in order of display, which is also the order of priority."""

DEVICE_CATEGORIES: dict[str, DeviceKind] = {
    "device_compute": DeviceKind.COMPUTE,
    "communication": DeviceKind.COLLECTIVE,
    "memcpy_h2d": DeviceKind.H2D,
    "memcpy_d2h": DeviceKind.D2H,
    "memcpy_d2d": DeviceKind.D2D,
    "memcpy_p2p": DeviceKind.P2P,
    "memcpy_unknown": DeviceKind.COPY,
    "memset": DeviceKind.MEMSET,
}
"""The categories that device work fills, in order of priority."""

_RUNTIME_CATEGORIES: dict[str, RuntimeKind] = {
    "kernel_launch": RuntimeKind.LAUNCH,
    "runtime_sync": RuntimeKind.SYNC,
    "runtime_alloc": RuntimeKind.ALLOC,
    "runtime_other": RuntimeKind.OTHER,
}


HOST_CATEGORIES = ("input", *_RUNTIME_CATEGORIES, "host_compute", "host_other")
"""The categories that the host fills, in order of priority. The last one is the time of none of the others."""


def is_host_collective(name: str) -> bool:
    """Return whether an annotation marks a collective that runs on the host. NCCL's annotations mark only its issue."""
    return name.startswith(("gloo:", "mpi:", "ucc:"))


def host_collectives(trace: Trace) -> Intervals:
    """Return when collectives run on the host."""
    marks = trace.annotations
    rows = trace.names_where(is_host_collective)[marks.name]
    return merge(marks.start_ns[rows], marks.end_ns[rows])


@cached_per_trace
def host_sets(trace: Trace) -> dict[str, Intervals]:
    """Return when each category of the host is active, in order of priority, without ``host_other``."""
    sets = {"input": EMPTY}
    if (fetch := marks_by_phase(trace).get("fetch")) is not None:
        waits = fetch.thread == trace.steps.thread
        sets["input"] = merge(fetch.start_ns[waits], fetch.end_ns[waits])
    kinds = runtime_kinds(trace)
    for name, kind in _RUNTIME_CATEGORIES.items():
        rows = kinds == kind
        sets[name] = merge(trace.runtime.start_ns[rows], trace.runtime.end_ns[rows])
    sets["host_compute"] = merge(trace.operators.start_ns, trace.operators.end_ns)
    return sets
