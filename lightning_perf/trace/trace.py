"""A trace as columns: its tables, the links from device work to the calls that launched it, and its step windows."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from lightning_perf.trace.columns import (
    NO_ROW,
    Annotations,
    BoolArray,
    Collectives,
    Counters,
    DeviceEvents,
    GraphRegions,
    Int32Array,
    Int64Array,
    MemoryEvents,
    Operators,
    RuntimeCalls,
    Spans,
    Thread,
)
from lightning_perf.trace.description import Metadata, Problems
from lightning_perf.trace.indexing import at_rows, enclosing_rows, parent_rows, used_codes
from lightning_perf.trace.on_disk import on_disk, release_columns
from lightning_perf.trace.tensors import WindowTensors

CUT_MARK = "perf::step_cut"
"""Name of an annotation of `PerfCallback` in a step that it has to leave before the step is complete."""

_MARK = re.compile(r"ProfilerStep#(\d{1,18})$")
_LOOP_MARK = re.compile(r"Optimizer\.(?:step|zero_grad)#|perf::")


_LAUNCH_PREFIXES = (
    "cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch", "hipLaunch", "hipExtLaunch", "hipModuleLaunch",
    "hipExtModuleLaunch", "hipHccModuleLaunch", "hipGraphLaunch", "urEnqueueKernelLaunch", "zeCommandListAppendLaunch",
)  # fmt: skip


class FileClock(Struct, frozen=True):
    """How the times of one file relate to those of the tables.

    Attributes:
        begin_ns: Time of the file's first event in the tables.
        base_time_ns: Added to the times in the file to get those in the tables.
    """

    begin_ns: int
    base_time_ns: int


class Trace(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """One rank's recording as columns. Copy a column before you write to it: it may be read-only.

    Attributes:
        sources: The file or files it was read from.
        type_lists: Interned operator input types, each as JSON text (``["float","Scalar"]``).
        shape_lists: Interned operator input dimensions, each as JSON text (``[[32,3,224,224],[]]``).
        stride_lists: Interned strides of operator inputs, in elements, each as JSON text (``[[50176,224,1],[]]``).
        value_lists: Interned values of operator inputs other than tensors, each as JSON text
            (``["","[1, 1]","True"]``).
        annotations: Ranges that a user or framework marked (``user_annotation``), ``ProfilerStep#n`` among them.
        python: Python functions (recorded with stacks only).
        regions: Named regions of CUDA graphs (torch 2.15 and later).
        counters: Hardware counters (torch 2.15 and later).
        joined_clocks: The clocks of the files of a joined recording; use `clocks`.
        tensors: Parameters, gradients and optimizer state by address, of each window in which `PerfCallback` listed
            them.
    """

    sources: tuple[str, ...]
    names: tuple[str, ...]
    threads: tuple[Thread, ...]
    type_lists: tuple[str, ...]
    shape_lists: tuple[str, ...]
    stride_lists: tuple[str, ...]
    value_lists: tuple[str, ...]
    operators: Operators
    annotations: Annotations
    python: Spans
    runtime: RuntimeCalls
    device: DeviceEvents
    collectives: Collectives
    memory: MemoryEvents
    regions: GraphRegions
    counters: Counters
    metadata: Metadata = field(default_factory=Metadata)
    problems: Problems = field(default_factory=Problems)
    joined_clocks: tuple[FileClock, ...] = ()
    tensors: tuple[WindowTensors, ...] = ()

    @cached_property
    def clocks(self) -> tuple[FileClock, ...]:
        """The clock of each file that this was read from, in time order (computed once)."""
        return self.joined_clocks or (FileClock(self.begin_ns, self.metadata.base_time_ns),)

    @cached_property
    def links(self) -> Links:
        """The runtime call that started each piece of device work, and the operator around it (computed once)."""
        return _find_links(self)

    @cached_property
    def steps(self) -> Steps:
        """The step windows (computed once)."""
        return _find_steps(self)

    @property
    def begin_ns(self) -> int:
        """Start of the first event of any table; 0 in a trace without events."""
        return min((int(t.start_ns[0]) for t in self.tables() if len(t)), default=0)

    @cached_property
    def end_ns(self) -> int:
        """End of the last event of any table; 0 in a trace without events."""
        return max((int(t.end_ns.max()) for t in self.tables() if len(t)), default=0)

    def names_where(self, accept: Callable[[str], bool]) -> BoolArray:
        """Return a mask over `names`. Index it with a code column to get a mask over rows."""
        return np.fromiter((accept(name) for name in self.names), dtype=np.bool_, count=len(self.names))

    def rows_where(self, column: NDArray[np.integer[Any]], accept: Callable[[str], bool]) -> BoolArray:
        """Return a mask over a column of names, for tests that take long: only names in the column are tested."""
        accepted = np.zeros(len(self.names), dtype=np.bool_)
        for code in used_codes(column):
            accepted[code] = accept(self.names[code])
        mask: BoolArray = accepted[column]
        return mask

    def tables(self) -> tuple[Spans | DeviceEvents, ...]:
        """Return the tables of events with a start and an end."""
        return self.operators, self.annotations, self.python, self.runtime, self.device


def is_launch_name(name: str) -> bool:
    """Return whether a runtime or driver call of this name starts a kernel or a graph.

    Memsets do not count: cuBLAS asks for many of no bytes, which start nothing.
    """
    return name.startswith(_LAUNCH_PREFIXES) and "HostFunc" not in name


class Links(Struct, frozen=True, eq=False, dict=True):
    """Row references between the tables of a `Trace`; `NO_ROW` for a missing one.

    Attributes:
        device_runtime: For each device row, the runtime row that started it.
        runtime_operator: For each runtime row, the innermost operator row that contains it on its thread.
        operator_parent: For each operator row, the operator row directly around it on its thread.
        is_launch: For each runtime row, whether it is a kernel launch. Its device work is a kernel or memset, or
            it has a launch call's name and no recorded device work.
    """

    device_runtime: Int32Array
    runtime_operator: Int32Array
    operator_parent: Int32Array
    is_launch: BoolArray

    @cached_property
    def device_operator(self) -> Int32Array:
        """For each device row, the innermost operator that launched it."""
        return on_disk(at_rows(self.runtime_operator, self.device_runtime, NO_ROW))


def _find_links(trace: Trace) -> Links:
    """Link device work to runtime calls by correlation, and those to operators by thread and time.

    ``External id`` is not used. On many recordings it matches no kernel at all, and where it matches, containment finds
    the same operator.
    """
    device_runtime = on_disk(_device_runtime(trace))
    parents = on_disk(parent_rows(trace.operators))
    release_columns()
    runtime_operator = on_disk(enclosing_rows(trace.runtime, trace.operators, parents))
    release_columns()
    return Links(
        device_runtime=device_runtime,
        runtime_operator=runtime_operator,
        operator_parent=parents,
        is_launch=_is_launch(trace, device_runtime),
    )


def _device_runtime(trace: Trace) -> Int32Array:
    """Find the call with the same correlation. Numbers restart in a later window: the nearest call before counts."""
    device, runtime = trace.device, trace.runtime
    found = np.full(len(device), NO_ROW, dtype=np.int32)
    rows = np.flatnonzero(runtime.correlation > 0)
    wanted = np.flatnonzero(device.correlation > 0)
    if not len(rows) or not len(wanted):
        return found
    rows = rows[np.argsort(runtime.correlation[rows], kind="stable")]
    numbers = runtime.correlation[rows]
    new = np.append(True, numbers[1:] != numbers[:-1])
    # One key orders calls by number, then by time (table rows are in time order).
    span = len(runtime) + 1
    keys = (np.cumsum(new) - 1) * span + rows
    numbers = numbers[new]
    at = np.minimum(np.searchsorted(numbers, device.correlation[wanted]), len(numbers) - 1)
    known = numbers[at] == device.correlation[wanted]
    wanted, at = wanted[known], at[known]
    started = np.searchsorted(runtime.start_ns, device.start_ns[wanted], side="right")
    before = np.searchsorted(keys, at * span + started, side="left") - 1
    # A skewed clock can put the work before its call. Then take the first call of that number.
    nearest = np.where((before >= 0) & (keys[np.maximum(before, 0)] >= at * span), before, before + 1)
    found[wanted] = rows[nearest]
    return found


def _is_launch(trace: Trace, device_runtime: Int32Array) -> BoolArray:
    linked = device_runtime >= 0
    has_work = np.zeros(len(trace.runtime), dtype=np.bool_)
    has_work[device_runtime[linked]] = True
    starts_work = np.zeros(len(trace.runtime), dtype=np.bool_)
    starts_work[device_runtime[linked & ~trace.device.is_copy]] = True
    if not len(trace.runtime):
        return starts_work
    return starts_work | (~has_work & trace.names_where(is_launch_name)[trace.runtime.name])


class Steps(Struct, frozen=True, eq=False):
    """The step windows of a trace, in time order. They never overlap.

    Attributes:
        number: The ``n`` of ``ProfilerStep#n``; 0 for the whole recording.
        start_ns: Start of each window: the host mark's start or the last window's end, whichever is later.
        end_ns: End of each window: the host mark's end or the end of the last device work launched in it.
        complete: False for a step that the recording cut off. Averages leave it out.
        marked: False if the trace has no step marks, so that the one window is the whole recording.
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


def _find_steps(trace: Trace) -> Steps:
    """Find the step windows of a trace.

    Only the host's ``ProfilerStep#n`` marks count, not their copies on the device's timeline. Of nested marks, the
    outermost is the step. Device work belongs to the step of its runtime call, on any thread: the host mark in which
    the call began. Other device work before that of the first step ends an earlier step, which was not recorded.

    Without marks, there is one step, from the first operator or device work to the end of the last one. Python frames,
    annotations and the calls around them are the profiler's own starting and stopping.
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
    # Windows follow one another: each begins at the end of the last one or later.
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
    """Return for each name the number of the step that it marks, or -1."""
    found = ((_MARK.match(name) if name.startswith("ProfilerStep#") else None) for name in trace.names)
    return np.fromiter((int(m.group(1)) if m else -1 for m in found), dtype=np.int64, count=len(trace.names))


def _step_of_device(trace: Trace, start: Int64Array, end: Int64Array) -> Int64Array:
    """Return for each device row the position of the host mark in which its runtime call began, or -1."""
    called_by = trace.links.device_runtime
    step = np.full(len(called_by), -1, dtype=np.int64)
    linked = np.flatnonzero(called_by >= 0)
    called = trace.runtime.start_ns[called_by[linked]]
    at = np.searchsorted(start, called, side="right") - 1
    inside = (at >= 0) & (called <= end[np.maximum(at, 0)])
    step[linked[inside]] = at[inside]
    return step


def _end_of_unrecorded_step(trace: Trace, step_of_device: Int64Array) -> int:
    """Return the end of device work that was queued before the first step and ran before that step's own."""
    first = trace.device.start_ns[step_of_device == 0]
    if not len(first):
        return int(np.iinfo(np.int64).min)
    before = (step_of_device < 0) & (trace.device.start_ns < first[0])
    return int(trace.device.end_ns[before].max(initial=np.iinfo(np.int64).min))


def _complete(trace: Trace, step_of_device: Int64Array, start: Int64Array, end: Int64Array) -> BoolArray:
    """Return all steps up to the last with work: a mark opened just before the recording stopped holds none."""
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
    """Return steps that hold a `CUT_MARK`."""
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
    """Return the thread that marks its optimizer steps.

    Without such marks, it is the thread with the most time in its outermost operators and runtime calls. That rule
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
