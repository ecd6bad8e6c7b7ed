"""Step windows: a step is one optimizer step, from its host mark to the end of the device work it launched."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from lightning_perf.trace.columns import BoolArray, Int64Array, Trace

__all__ = ["CUT_MARK", "Steps", "find_steps"]

CUT_MARK = "perf::step_cut"
"""Name of an annotation that `PerfCallback` puts into a step which it has to leave before the step is whole."""

_MARK = re.compile(r"ProfilerStep#(\d{1,18})$")
_LOOP_MARK = re.compile(r"Optimizer\.(?:step|zero_grad)#|perf::")


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
    another the outermost is the step. Device work belongs to the step in whose host mark its runtime call began, on
    any thread. What ran before the first step's own device work and was not launched by a step ends the step before
    it, which was not recorded.

    Args:
        trace: The trace.

    Returns:
        The steps. Without marks, one step from the first operator or device work to the end of the last: Python
        frames, annotations and the calls around them are the profiler's own starting and stopping.
    """
    numbers = _mark_numbers(trace)
    marks = np.flatnonzero(numbers[trace.annotations.name] >= 0) if len(numbers) else np.zeros(0, dtype=np.int64)
    if not len(marks):
        return _whole_recording(trace)
    start, end = trace.annotations.start_ns[marks], trace.annotations.end_ns[marks]
    # In table order a mark lies inside an earlier one exactly if it does not end after all of those.
    latest = np.maximum.accumulate(end)
    outer = np.concatenate(([True], end[1:] > latest[:-1]))
    marks, start, end = marks[outer], start[outer], end[outer]
    step_of_device = _step_of_device(trace, start, end)
    device_end = end.copy()
    launched = step_of_device >= 0
    np.maximum.at(device_end, step_of_device[launched], trace.device.end_ns[launched])
    # Windows follow one another: each begins where the last one ended, at the earliest.
    window_end = np.maximum.accumulate(np.maximum(device_end, _end_of_unrecorded_step(trace, step_of_device)))
    window_start = start.copy()
    window_start[0] = max(start[0], _end_of_unrecorded_step(trace, step_of_device))
    window_start[1:] = np.maximum(start[1:], window_end[:-1])
    return Steps(
        number=numbers[trace.annotations.name[marks]],
        start_ns=window_start,
        end_ns=np.maximum(window_end, window_start),
        host_start_ns=start,
        host_end_ns=end,
        complete=_complete(trace, step_of_device, start, end)
        & ~_cut(trace, start, end)
        & trace.annotations.finished[marks],
        marked=True,
        thread=int(np.bincount(trace.annotations.thread[marks]).argmax()),
    )


def _mark_numbers(trace: Trace) -> Int64Array:
    """For each name the number of the step that it marks, or -1."""
    found = ((_MARK.match(name) if name.startswith("ProfilerStep#") else None) for name in trace.names)
    return np.fromiter((int(m.group(1)) if m else -1 for m in found), dtype=np.int64, count=len(trace.names))


def _step_of_device(trace: Trace, start: Int64Array, end: Int64Array) -> Int64Array:
    """For each device row the position of the host mark in which its runtime call began, or -1."""
    called_by = trace.links.device_runtime
    step = np.full(len(called_by), -1, dtype=np.int64)
    linked = np.flatnonzero(called_by >= 0)
    called = trace.runtime.start_ns[called_by[linked]]
    at = np.searchsorted(start, called, side="right") - 1
    inside = (at >= 0) & (called <= end[np.maximum(at, 0)])
    step[linked[inside]] = at[inside]
    return step


def _end_of_unrecorded_step(trace: Trace, step_of_device: Int64Array) -> int:
    """The end of device work that was queued before the first step and ran before that step's own."""
    first = trace.device.start_ns[step_of_device == 0]
    if not len(first):
        return int(np.iinfo(np.int64).min)
    before = (step_of_device < 0) & (trace.device.start_ns < first[0])
    return int(trace.device.end_ns[before].max(initial=np.iinfo(np.int64).min))


def _complete(trace: Trace, step_of_device: Int64Array, start: Int64Array, end: Int64Array) -> BoolArray:
    """All steps up to the last with work: a mark opened just before the recording stopped holds none."""
    busy = np.zeros(len(start), dtype=np.bool_)
    busy[step_of_device[step_of_device >= 0]] = True
    if not busy.any():
        began = np.searchsorted(trace.operators.start_ns, start)
        busy = np.searchsorted(trace.operators.start_ns, end) > began
    if not busy.any():
        return np.ones(len(start), dtype=np.bool_)
    complete: BoolArray = np.arange(len(start)) <= np.flatnonzero(busy)[-1]
    return complete


def _cut(trace: Trace, start: Int64Array, end: Int64Array) -> BoolArray:
    """Steps that hold a `CUT_MARK`."""
    at = trace.annotations.start_ns[trace.names_where(lambda name: name == CUT_MARK)[trace.annotations.name]]
    cut: BoolArray = np.searchsorted(at, end, side="right") > np.searchsorted(at, start)
    return cut


def _whole_recording(trace: Trace) -> Steps:
    worked = [table for table in (trace.operators, trace.device) if len(table)]
    begin = min((int(table.start_ns[0]) for table in worked), default=trace.begin_ns)
    end = max((int(table.end_ns.max()) for table in worked), default=trace.end_ns)

    def one(value: int) -> Int64Array:
        return np.array([value], dtype=np.int64)

    return Steps(
        number=one(0),
        start_ns=one(begin),
        end_ns=one(end),
        host_start_ns=one(begin),
        host_end_ns=one(end),
        complete=np.ones(1, dtype=np.bool_),
        marked=False,
        thread=_training_thread(trace),
    )


def _training_thread(trace: Trace) -> int:
    """The thread that marks its optimizer steps.

    Without such marks, the one with the most time in operators and runtime calls that nothing of theirs encloses. That
    alone would mostly name the autograd engine's thread in a training.
    """
    loop = trace.names_where(lambda name: _LOOP_MARK.match(name) is not None)[trace.annotations.name]
    if loop.any():
        return int(np.bincount(trace.annotations.thread[loop]).argmax())
    busy = np.zeros(max(len(trace.threads), 1), dtype=np.int64)
    outermost = trace.links.operator_parent < 0
    np.add.at(busy, trace.operators.thread[outermost], trace.operators.duration_ns[outermost])
    outside = trace.links.runtime_operator < 0
    np.add.at(busy, trace.runtime.thread[outside], trace.runtime.duration_ns[outside])
    if not busy.any():
        np.add.at(busy, trace.annotations.thread, trace.annotations.duration_ns)
        np.add.at(busy, trace.python.thread, 1)
    return int(busy.argmax())
