"""Calls of the runtime in which the host waits for the device, rather than working."""

from __future__ import annotations

import numpy as np

from lightning_perf.analysis.gaps import device_busy
from lightning_perf.analysis.runtime_calls import RuntimeKind, runtime_kinds
from lightning_perf.analysis.windows import in_averaged_steps
from lightning_perf.trace.columns import NO_ROW, Int64Array
from lightning_perf.trace.distinct import used_codes
from lightning_perf.trace.trace import Trace

__all__ = ["blocked_ns"]

UNHINDERED = 25
"""The percentile of the durations of one kind of call that stands for its own cost. Where the device is what a training
waits for, more than half of the launches may find the queue full."""


def blocked_ns(trace: Trace) -> Int64Array:
    """How long each call of `Trace.runtime` kept the host waiting for the device.

    A synchronizing call does nothing but wait. A launch returns at once, but for a queue that is full: then it waits
    for the device to take a kernel from it. A copy from pageable memory waits until its stream has nothing left
    (https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html). So what launches and copies take beyond what
    a quarter of their kind take at most is waiting, as far as the device works meanwhile.
    """
    runtime = trace.runtime
    kinds = runtime_kinds(trace)
    blocked: Int64Array = np.where(kinds == RuntimeKind.SYNC, runtime.duration_ns, 0)
    starts_work = np.zeros(len(runtime), dtype=np.bool_)
    starts_work[trace.links.device_runtime[trace.links.device_runtime != NO_ROW]] = True
    calls = np.flatnonzero(starts_work & (kinds != RuntimeKind.SYNC) & in_averaged_steps(trace, runtime.start_ns))
    for code in used_codes(runtime.name[calls]):
        rows = calls[runtime.name[calls] == code]
        blocked[rows] = runtime.duration_ns[rows] - np.percentile(runtime.duration_ns[rows], UNHINDERED)
    blocked[calls] = np.clip(
        blocked[calls], 0, device_busy(trace).covered(runtime.start_ns[calls], runtime.end_ns[calls])
    )
    return blocked
