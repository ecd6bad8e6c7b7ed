"""Step windows: a step is one optimizer step, from its host mark to the end of the device work it launched."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from lightning_perf.trace.columns import BoolArray, Int64Array, Trace

__all__ = ["Steps", "find_steps"]

_MARK = re.compile(r"ProfilerStep#(\d{1,18})$")


@dataclass(frozen=True, eq=False)
class Steps:
    """The step windows of a trace, in time order; they never overlap.

    Attributes:
        number: The ``n`` of ``ProfilerStep#n``; 0 for the whole recording.
        start_ns: Begin of each window: the host mark's begin or the last window's end, whichever is later.
        end_ns: End of each window: the host mark's end or the end of the last device work launched in it.
        host_start_ns: Begin of the host's mark.
        host_end_ns: End of the host's mark.
        complete: False for a step cut off by an end of the recording; it is left out of averages.
        marked: False when the trace has no step marks and the one window is the whole recording.
        thread: Code into `Trace.threads` of the training thread (the marks' thread, or the busiest one).
    """

    number: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    host_start_ns: Int64Array
    host_end_ns: Int64Array
    complete: BoolArray
    marked: bool
    thread: int

    def __len__(self) -> int:
        return len(self.start_ns)


def find_steps(trace: Trace) -> Steps:
    """Find the step windows of a trace.

    Only the host's ``ProfilerStep#n`` marks count, not their copies on the device's timeline. Of marks inside one
    another the outermost is the step.

    Args:
        trace: The trace.

    Returns:
        The steps; the whole recording as one step when there are no marks.
    """
    found = [(code, m) for code, name in enumerate(trace.names) if (m := _MARK.match(name))]
    numbers = np.full(len(trace.names), -1, dtype=np.int64)
    for code, match in found:
        numbers[code] = int(match.group(1))
    marks = np.flatnonzero(numbers[trace.annotations.name] >= 0) if found else np.zeros(0, dtype=np.int64)
    if not len(marks):
        return _whole_recording(trace)
    start, end = trace.annotations.start_ns[marks], trace.annotations.end_ns[marks]
    # In table order a mark lies inside an earlier one exactly if it does not end after all of those.
    latest = np.maximum.accumulate(end)
    outer = np.concatenate(([True], end[1:] > latest[:-1]))
    marks, start, end = marks[outer], start[outer], end[outer]
    device_end = _device_end(trace, start, end)
    window_start, window_end = np.empty_like(start), np.empty_like(end)
    last = start[0]
    for i in range(len(marks)):
        window_start[i] = max(start[i], last)
        last = window_end[i] = max(end[i], device_end[i], window_start[i])
    threads = trace.annotations.thread[marks]
    return Steps(
        number=numbers[trace.annotations.name[marks]],
        start_ns=window_start,
        end_ns=window_end,
        host_start_ns=start,
        host_end_ns=end,
        complete=np.ones(len(marks), dtype=np.bool_),
        marked=True,
        thread=int(np.bincount(threads).argmax()),
    )


def _device_end(trace: Trace, start: Int64Array, end: Int64Array) -> Int64Array:
    """The end of the last device work whose call began inside each host mark; the mark's end when there is none."""
    rows = trace.links.device_runtime
    linked = rows >= 0
    called = trace.runtime.start_ns[rows[linked]]
    step = np.searchsorted(start, called, side="right") - 1
    inside = (step >= 0) & (called < end[np.maximum(step, 0)])
    latest = end.copy()
    np.maximum.at(latest, step[inside], trace.device.end_ns[linked][inside])
    return latest


def _whole_recording(trace: Trace) -> Steps:
    def one(value: int) -> Int64Array:
        return np.array([value], dtype=np.int64)

    busy = np.zeros(max(len(trace.threads), 1), dtype=np.int64)
    for table in (trace.operators, trace.runtime):
        np.add.at(busy, table.thread, 1)
    return Steps(
        number=one(0),
        start_ns=one(trace.begin_ns),
        end_ns=one(trace.end_ns),
        host_start_ns=one(trace.begin_ns),
        host_end_ns=one(trace.end_ns),
        complete=np.ones(1, dtype=np.bool_),
        marked=False,
        thread=int(busy.argmax()),
    )
