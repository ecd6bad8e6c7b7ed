"""Memory: what was allocated over time, when it peaked, and what was alive then."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_perf.analysis.memory_blocks import AliveBlocks, alive_blocks
from lightning_perf.analysis.series import Series, thin
from lightning_perf.trace.columns import Int64Array
from lightning_perf.trace.trace import Trace

__all__ = ["DeviceMemory", "Memory", "memory"]


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device, over the whole recording.

    Attributes:
        device: Device ordinal; None for the host.
        absolute: Whether the figures hold what was allocated before the recording. Otherwise (the host; any device in
            recordings that do not tell the allocator's totals) they are lower bounds.
        allocated: Bytes in tensors, over time.
        reserved: Bytes that the allocator holds, over time; None when not recorded.
        peak_allocated_bytes: Most bytes in tensors.
        peak_ns: When that was first, from the begin of the recording.
        peak_step: Number of the step in which it was; None outside of the steps.
        peak_reserved_bytes: Most bytes that the allocator held; None when not recorded.
        alive: What was alive at the peak of those blocks whose allocation was recorded, largest first; None when the
            recording does not tell blocks apart.
        before_recording_bytes: What was alive at the peak since before the recording: in steady training the
            parameters, the optimizer's state and often the gradients. None when `absolute` is false or `alive` is None.
        total_bytes: The device's memory; None when not recorded.
        headroom_bytes: What the allocator left of it at its peak; None when either is not recorded. The context and
            other processes need some of it.
    """

    device: int | None
    absolute: bool
    allocated: Series
    reserved: Series | None
    peak_allocated_bytes: int
    peak_ns: int
    peak_step: int | None
    peak_reserved_bytes: int | None
    alive: tuple[AliveBlocks, ...] | None
    before_recording_bytes: int | None
    total_bytes: int | None
    headroom_bytes: int | None


@dataclass(frozen=True)
class Memory:
    """The memory of the devices that the recording has allocator events of.

    Attributes:
        devices: Accelerators by ordinal, then the host.
    """

    devices: tuple[DeviceMemory, ...]


def memory(trace: Trace) -> Memory | None:
    """Follow the allocators.

    Args:
        trace: The recording, made with ``profile_memory=True``.

    Returns:
        The figures, or None for a recording without allocator events.
    """
    if not len(trace.memory):
        return None
    ordinals = sorted(np.unique(trace.memory.device).tolist(), key=lambda ordinal: (ordinal < 0, ordinal))
    return Memory(tuple(_device(trace, ordinal) for ordinal in ordinals))


def _device(trace: Trace, ordinal: int) -> DeviceMemory:
    events = trace.memory
    rows = np.flatnonzero(events.device == ordinal)
    time = events.time_ns[rows]
    told = bool((events.allocated_bytes[rows] >= 0).all())
    # The host's totals begin with the recording (torch's ProfiledCPUMemoryReporter counts only while it is profiled).
    absolute = told and ordinal >= 0
    allocated = events.allocated_bytes[rows] if told else _summed(events.bytes[rows])
    reserved = events.reserved_bytes[rows]
    has_reserved = bool((reserved > 0).any())
    peak = int(np.argmax(allocated))
    peak_reserved = int(reserved.max()) if has_reserved else None
    alive = alive_blocks(trace, rows, peak) if (events.address[rows] != 0).any() else None
    known = sum(row.bytes for row in alive) if alive is not None else 0
    total = next((d.total_memory_bytes for d in trace.metadata.devices if d.ordinal == ordinal), None)
    return DeviceMemory(
        device=ordinal if ordinal >= 0 else None,
        absolute=absolute,
        allocated=thin(time, allocated, trace.begin_ns),
        reserved=thin(time, reserved, trace.begin_ns) if has_reserved else None,
        peak_allocated_bytes=int(allocated[peak]),
        peak_ns=int(time[peak]) - trace.begin_ns,
        peak_step=_step(trace, int(time[peak])),
        peak_reserved_bytes=peak_reserved,
        alive=alive,
        before_recording_bytes=max(int(allocated[peak]) - known, 0) if absolute and alive is not None else None,
        total_bytes=total,
        headroom_bytes=None if total is None or peak_reserved is None else total - peak_reserved,
    )


def _summed(change: Int64Array) -> Int64Array:
    """The least that can have been allocated: freeing a block from before the recording cannot make it negative."""
    level = np.cumsum(change)
    least: Int64Array = level - min(0, int(level.min()))
    return least


def _step(trace: Trace, time_ns: int) -> int | None:
    steps = trace.steps
    row = int(np.searchsorted(steps.start_ns, time_ns, side="right")) - 1
    return int(steps.number[row]) if row >= 0 and time_ns <= int(steps.end_ns[row]) else None
