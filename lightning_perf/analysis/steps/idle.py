"""Idle time: the gaps in which no device works, and the host's activity in each."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.analysis.intervals import (
    Intervals,
    averaged_steps,
    averaged_time,
    cached_per_trace,
    exclusive_ns,
    merge,
    share_of,
    subtract,
)
from lightning_perf.analysis.steps.breakdown import HOST_CATEGORIES, host_sets
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int64Array, Spans
from lightning_perf.trace.trace import Trace

GAP_CLASSES = ("kernel_gap", *HOST_CATEGORIES)
"""The causes of idle time, in order of priority. In a ``kernel_gap``, queued work has not started, so the host is not
at fault. The others are the host's categories of the breakdown."""


class Gaps(Struct, frozen=True, eq=False):
    """The device-idle gaps of the averaged steps, in time order. A gap that spans two steps is cut in two.

    Attributes:
        parts_ns: For each of `GAP_CLASSES`, its time in each gap, in 32 bits if all gaps fit. For every gap they sum to
            its length.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    parts_ns: dict[str, NDArray[np.signedinteger[Any]]]

    def __len__(self) -> int:
        return len(self.start_ns)


@cached_per_trace
def device_busy(trace: Trace) -> Intervals:
    """Return when any device works."""
    return merge(trace.device.start_ns, trace.device.end_ns)


def queued_work(trace: Trace) -> Intervals:
    """Return when work waits in a device queue: its launch call has returned, and it has not started."""
    rows = trace.links.device_runtime
    linked = rows >= 0
    return merge(trace.runtime.end_ns[rows[linked]], trace.device.start_ns[linked])


@cached_per_trace
def find_gaps(trace: Trace) -> Gaps:
    """Find the gaps and divide each among the classes. At each instant the first active class gets the time."""
    averaged = averaged_steps(trace) & (trace.steps.end_ns > trace.steps.start_ns)
    # Steps may touch. They are kept apart here, so that no gap belongs to two.
    steps = Intervals(trace.steps.start_ns[averaged], trace.steps.end_ns[averaged])
    idle = subtract(steps, device_busy(trace))
    sets = (queued_work(trace), *host_sets(trace).values())
    long = (idle.end_ns - idle.start_ns).max(initial=0) > np.iinfo(np.int32).max
    parts = exclusive_ns(sets, idle.start_ns, idle.end_ns, np.int64 if long else np.int32)
    return Gaps(idle.start_ns, idle.end_ns, dict(zip(GAP_CLASSES, parts, strict=True)))


REMEDIES = {
    "kernel_gap": "Work was queued in time: fewer, larger kernels (torch.compile) or a CUDA graph close the gaps",
    "input": "Fetch sooner: more DataLoader workers, persistent_workers=True, prefetch_factor, less work per sample",
    "kernel_launch": "Launch less often: torch.compile, CUDA graphs, a fused optimizer, a larger batch",
    "runtime_sync": "Do not wait for the device: no .item(), .cpu() or print of a tensor inside the step",
    "runtime_alloc": "Allocate less often: warm up with the largest batch, keep buffers, pin host memory once",
    "runtime_other": "Call the runtime less often inside the step",
    "host_compute": "The host is too slow to issue operators: torch.compile, CUDA graphs, fewer and larger operators",
    "host_other": "Python is busy: move logging, metrics and callbacks out of the step, or call them less often",
}
"""The change that would remove the gaps of each class."""

_LONG_KERNEL_GAP_NS = 100_000
"""A device starts queued work within some µs. Beyond this, the work waited for something else."""

_LONG_KERNEL_GAP_REMEDY = (
    "Work was queued, but waited for something other than the host's next launch: an event of another stream, another "
    "rank, a host function"
)

_GAPS_LISTED = 10

_STEP_MARK = "ProfilerStep#"


class IdleClass(Struct, frozen=True):
    """The device-idle time of one class.

    Attributes:
        name: One of `GAP_CLASSES`.
        total_ns: Idle time in all averaged steps.
        gaps: Gaps in which this class has the largest part.
        share: Part of the steps' wall time, 0 to 1; None if the file is truncated.
        remedy: The change that would remove it.
    """

    name: str
    total_ns: int
    gaps: int
    share: float | None
    remedy: str


class IdleGap(Struct, frozen=True):
    """One gap.

    Attributes:
        step: Number of its step.
        start_ns: Its start, from the start of the recording.
        length_ns: Its length.
        cause: The class with the largest part of it.
        after: The device work that ended it; None if the step ended first.
        operator: The operator that the training thread (or the thread that launched `after`) ran.
        annotation: The marked range that it was in.
        python: The Python function that it ran (recorded with stacks only).
        remedy: The change that would remove it.
    """

    step: int
    start_ns: int
    length_ns: int
    cause: str
    after: str | None
    operator: str | None
    annotation: str | None
    python: str | None
    remedy: str


class Idle(Struct, frozen=True):
    """The device-idle time of the averaged steps: instants at which no device does anything.

    Attributes:
        steps: Steps that the figures are over.
        idle_ns: Device-idle time: the totals of the classes together.
        share: Part of the wall time, 0 to 1; None if the file is truncated.
        gaps: Number of gaps.
        median_gap_ns: Median length of a gap; None without gaps.
        classes: One for each of `GAP_CLASSES`, the longest time first.
        longest: The longest gaps, longest first.
        stalls: Gaps above 100 µs in which work was queued for most of the time. It waited for something other than the
            host's next launch.
        stalled_ns: Time in these gaps in which work was queued.
        short_gap_ns: Time in gaps up to 100 µs in which work was queued; None in reports of older versions.
    """

    steps: int
    idle_ns: int
    share: float | None
    gaps: int
    median_gap_ns: int | None
    classes: tuple[IdleClass, ...]
    longest: tuple[IdleGap, ...]
    stalls: int = 0
    stalled_ns: int = 0
    short_gap_ns: int | None = None


def idle(trace: Trace) -> Idle | None:
    """Find the time in which no device works, and class it by the host's activity; None without a device."""
    if not len(trace.device):
        return None
    wall_ns = averaged_time(trace).length_ns
    gaps = find_gaps(trace)
    length = gaps.end_ns - gaps.start_ns
    parts = np.stack([gaps.parts_ns[name] for name in GAP_CLASSES])
    cause = parts.argmax(axis=0)
    caused = np.bincount(cause, minlength=len(GAP_CLASSES)).tolist()
    idle_ns, totals = int(length.sum()), parts.sum(axis=1).tolist()
    classes = [
        IdleClass(name, total_ns, count, share_of(trace, total_ns, wall_ns), REMEDIES[name])
        for name, total_ns, count in zip(GAP_CLASSES, totals, caused, strict=True)
    ]
    stalled = (cause == GAP_CLASSES.index("kernel_gap")) & (length > _LONG_KERNEL_GAP_NS)
    top = np.argsort(-length, kind="stable")[:_GAPS_LISTED].tolist()
    return Idle(
        steps=int(averaged_steps(trace).sum()),
        idle_ns=idle_ns,
        share=share_of(trace, idle_ns, wall_ns),
        gaps=len(gaps),
        median_gap_ns=round(float(np.median(length))) if len(gaps) else None,
        classes=tuple(sorted(classes, key=lambda row: -row.total_ns)),
        longest=tuple(_describe(trace, gaps, row, GAP_CLASSES[cause[row]]) for row in top),
        stalls=int(stalled.sum()),
        stalled_ns=int(gaps.parts_ns["kernel_gap"][stalled].sum()),
        short_gap_ns=int(gaps.parts_ns["kernel_gap"][length <= _LONG_KERNEL_GAP_NS].sum()),
    )


def _describe(trace: Trace, gaps: Gaps, row: int, cause: str) -> IdleGap:
    start, end = int(gaps.start_ns[row]), int(gaps.end_ns[row])
    device, steps = trace.device, trace.steps
    step = int(np.searchsorted(steps.start_ns, start, side="right")) - 1
    first_after = int(np.searchsorted(device.start_ns, end, side="left"))
    # A step can end before the next work begins.
    ends_it = first_after < len(device) and int(device.start_ns[first_after]) == end
    thread = steps.thread
    if ends_it and (call := int(trace.links.device_runtime[first_after])) != NO_ROW:
        thread = int(trace.runtime.thread[call])
    is_step = trace.names_where(lambda name: name.startswith(_STEP_MARK))
    marks = trace.annotations
    return IdleGap(
        step=int(steps.number[step]),
        start_ns=start - trace.begin_ns,
        length_ns=end - start,
        cause=cause,
        after=trace.names[int(device.name[first_after])] if ends_it else None,
        operator=_running(trace, trace.operators, thread, start, end),
        annotation=_running(trace, marks, thread, start, end, skip=is_step),
        python=_running(trace, trace.python, thread, start, end),
        remedy=_LONG_KERNEL_GAP_REMEDY
        if cause == "kernel_gap" and end - start > _LONG_KERNEL_GAP_NS
        else REMEDIES[cause],
    )


def _running(
    trace: Trace, table: Spans, thread: int, start_ns: int, end_ns: int, skip: BoolArray | None = None
) -> str | None:
    """Return the activity of a thread in a gap: the innermost span over half of it, or else the one with most of it."""
    began = int(np.searchsorted(table.start_ns, end_ns, side="left"))
    rows = np.flatnonzero((table.end_ns[:began] > start_ns) & (table.thread[:began] == thread))
    if skip is not None:
        rows = rows[~skip[table.name[rows]]]
    if not len(rows):
        return None
    overlap = np.minimum(table.end_ns[rows], end_ns) - np.maximum(table.start_ns[rows], start_ns)
    over_half = np.flatnonzero(2 * overlap > end_ns - start_ns)
    chosen = rows[over_half[-1]] if len(over_half) else rows[int(np.argmax(overlap))]
    return trace.names[int(table.name[chosen])]
