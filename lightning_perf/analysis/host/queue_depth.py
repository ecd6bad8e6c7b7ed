"""Queue depth: how much work is launched and has not started."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_perf.analysis.core.arrays import Series, thin
from lightning_perf.analysis.core.intervals import merge
from lightning_perf.trace.columns import BoolArray, Int64Array
from lightning_perf.trace.indexing import distinct
from lightning_perf.trace.trace import Trace

__all__ = ["QueueDepth", "StreamQueue", "queue_depth"]


@dataclass(frozen=True)
class StreamQueue:
    """The queue of one stream.

    Attributes:
        device: Device ordinal.
        stream: Stream number.
        items: Kernels, copies and memsets that passed through it.
        max: Largest depth.
        mean: Mean depth over the wall time of the averaged steps.
        empty_share: Part of that time in which it was empty, 0 to 1.
    """

    device: int
    stream: int
    items: int
    max: int
    mean: float
    empty_share: float


@dataclass(frozen=True)
class QueueDepth:
    """How much launched work waits for its start.

    The depth rises at the start of a launch call, and falls when work starts. A queue that is hardly ever empty hides
    the cost of launches. If it is empty most of the time, the host launches only just in time, or too late.

    Attributes:
        max: Largest depth, all streams together.
        mean: Mean depth over the wall time of the averaged steps.
        empty_share: Part of that time in which all queues were empty, 0 to 1.
        streams: Each stream, the busiest first.
        series: The depth over time, all streams together.
    """

    max: int
    mean: float
    empty_share: float
    streams: tuple[StreamQueue, ...]
    series: Series


def queue_depth(trace: Trace, rows: BoolArray, wall_ns: int) -> QueueDepth | None:
    """Follow the queues.

    Args:
        trace: The recording.
        rows: The device rows to follow. Rows without a recorded launch are left out.
        wall_ns: The time that means are over.

    Returns:
        The depths, or None if no launch of these rows was recorded.
    """
    device = trace.device
    chosen = np.flatnonzero(rows & (trace.links.device_runtime >= 0))
    if not len(chosen) or wall_ns <= 0:
        return None
    started = device.start_ns[chosen]
    # With skewed clocks work can seem to start before its launch. Then it never waited.
    entered = np.minimum(trace.runtime.start_ns[trace.links.device_runtime[chosen]], started)
    streams = []
    numbers, code = distinct(device.stream[chosen])
    keys, group = distinct(device.device[chosen] * np.int64(len(numbers)) + code)
    for at, key in enumerate(keys.tolist()):
        mine = group == at
        depth = _depth(entered[mine], started[mine], wall_ns)
        streams.append(StreamQueue(key // len(numbers), int(numbers[key % len(numbers)]), int(mine.sum()), *depth))
    streams.sort(key=lambda queue: (-queue.items, queue.device, queue.stream))
    greatest, mean, empty_share = _depth(entered, started, wall_ns)
    return QueueDepth(greatest, mean, empty_share, tuple(streams), _series(trace, entered, started))


def _depth(entered: Int64Array, started: Int64Array, wall_ns: int) -> tuple[int, float, float]:
    """Return largest and mean depth, and the share of the time at depth 0. ``started`` ascends."""
    order = np.sort(entered)
    # Right after each entry. Work that starts at that instant still counts.
    depth = np.arange(1, len(order) + 1) - np.searchsorted(started, order, side="left")
    waiting = merge(order, started[np.argsort(entered, kind="stable")]).length_ns
    return int(depth.max()), float((started - entered).sum()) / wall_ns, max(0.0, 1 - waiting / wall_ns)


def _series(trace: Trace, entered: Int64Array, started: Int64Array) -> Series:
    time = np.concatenate([entered, started])
    change = np.ones(len(time), dtype=np.int64)
    change[len(entered) :] = -1
    order = np.argsort(time, kind="stable")  # entries before starts at one instant: the depth is never negative
    return thin(time[order], np.cumsum(change[order]), trace.begin_ns)
