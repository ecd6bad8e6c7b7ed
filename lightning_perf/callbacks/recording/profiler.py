"""The profiler: `torch.profiler` around the steps that the schedule names, one trace file a window."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch.autograd.profiler import profile as autograd_profile
from torch.profiler import ProfilerActivity, profile, record_function
from torch.torch_version import TorchVersion

from lightning_perf.callbacks import background
from lightning_perf.callbacks.recording.recording_plan import Recording
from lightning_perf.callbacks.recording.schedule import Action, WindowPlan, recording_notes
from lightning_perf.callbacks.recording.window_notes import LAST_STEPS, WindowNotes
from lightning_perf.callbacks.steps.fit_state import FitContext, Phase
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.callbacks.wrapped_methods import WrappedMethods
from lightning_perf.run_files.captures import RecordedWindow
from lightning_perf.run_files.traces import export_trace
from lightning_perf.trace.description import STOPPED_KEY
from lightning_perf.trace.trace import CUT_MARK

T = TypeVar("T")

MAX_NAMED = 3
"""Threads in a warning."""

_ACTIVITIES = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}


def new_recorder(recording: Recording, device_type: str) -> profile:
    """Make a profiler for one window, with no schedule of its own."""
    # It logs each start and stop, and that a machine has no GPU, as if they were errors.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    # Without it CUPTI stays attached after the window and slows down every later step (pytorch#144455).
    os.environ.setdefault("TEARDOWN_CUPTI", "1")
    device = [_ACTIVITIES[device_type]] if device_type in _ACTIVITIES else []
    return profile(
        activities=[ProfilerActivity.CPU, *device],
        record_shapes=recording.record_shapes,
        profile_memory=recording.profile_memory,
        with_stack=recording.with_stack,
        with_flops=recording.with_flops,
        experimental_config=_with_collections() if recording.with_stack else None,
    )


def _with_collections() -> Any:
    """Return torch's setting that records garbage collections next to Python's functions; None before torch 2.15."""
    try:
        return torch._C._profiler._ExperimentalConfig(record_python_gc_info=True)  # private, without a public equal
    except TypeError:
        return None


def threads_are_dangerous() -> bool:
    """Whether other threads can crash the start of a recording of Python functions; `background` says how."""
    return sys.version_info >= (3, 12) and TorchVersion(torch.__version__) < "2.12"


def leave_out_functions(prepared: profile) -> None:
    """Have a profiler that has not started record no Python functions."""
    prepared.with_stack = False
    if prepared.profiler is not None:
        prepared.profiler.with_stack = False


def recorder_is_taken() -> bool:
    """Whether a profiler records; one that still warms up is not seen."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]  # private, without a public equal


def device_recording_stopped() -> bool:
    """Whether kineto has dropped events of a device, because its buffer for them was full (128 MB by default).

    Otherwise only ``profile.step`` asks, which windows do not call. The warning is below the log level.
    """
    asked = getattr(torch.autograd, "_is_kineto_stopped", None)  # private, and new
    return asked is not None and bool(asked())


def export_options(stopped: profile) -> dict[str, Mapping[int, Any]]:
    """Return the names that the program gave to kernels in CUDA graphs, for the export, as torch 2.15 takes them.

    Without such names there is no option, because torch then exports events in Python, which takes longer.
    """
    module = getattr(torch.cuda, "graph_annotations", None)
    named: Mapping[int, Any] = getattr(module, "get_kernel_annotations", dict)()
    known = "cuda_graph_annotations" in inspect.signature(stopped.export_chrome_trace).parameters
    return {"cuda_graph_annotations": named} if named and known else {}


@contextmanager
def _no_advice_on_cycles() -> Iterator[None]:
    """Silence the warning of torch before 2.12, at every start, that a second cycle would clear the first.

    Nobody calls it, and the advised acc_events=True would turn all events into Python objects at once. Newer torch is
    left alone: any change of the filters makes Python repeat all warnings that it shows only once.
    """
    if TorchVersion(torch.__version__) >= "2.12":
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning: Profiler clears events")
        yield


class WindowProfiler(FitObserver):
    """Records windows of whole steps and writes each to a trace file.

    A window ends with its last step, or earlier if validation or the end of an epoch interrupts it. The rest of it then
    goes into another file. The trace shows each step as ``ProfilerStep#n``, with its phases inside. A step that is cut
    off holds a `lightning_perf.trace.trace.CUT_MARK`, and its own mark ends with the recording.

    `torch.profiler.profile.step` is not used: it would put the marks where the window is moved on, and cannot leave
    out what happens between two steps.

    Args:
        on_window: Called with each window that has ended, whether it left a trace or not.
        may_begin: Whether a window may start.
    """

    consequence = "no further steps are recorded"

    _recorder: ClassVar[threading.Lock] = threading.Lock()
    """Held from warm-up until the trace is written: torch has one recorder a process, for all of its threads."""
    _preparing: ClassVar[bool] = False
    """Whether it is one of ours that takes the recorder just now."""

    def __init__(
        self,
        context: FitContext,
        plan: WindowPlan,
        recording: Recording,
        notes: WindowNotes,
        *,
        on_window: Callable[[RecordedWindow], None] = lambda _: None,
        may_begin: Callable[[], bool] = lambda: True,
    ) -> None:
        self._state = context.state
        self._plan = plan
        self._recording = recording
        self._device_type = context.loop.device.type
        self._rank = context.loop.rank
        self._errors = context.errors
        self._on_window = on_window
        self._may_begin = may_begin
        self._refused = 0
        self._notes = notes
        self._left_out = False
        self._said_dangerous = False
        self._capture = ""
        self._begun_at = 0
        self._pause_ns = 0
        self._export_ns = 0
        self._trace_bytes = 0
        self._due: float = 0
        self._follows = True
        self._profile: profile | None = None
        self._watch = WrappedMethods()
        # Private; all of torch's profilers come by here before they touch the recorder.
        self._watch.listen(autograd_profile, "_prepare_trace", lambda *_, **__: self._give_way())
        self._gave_way = False
        self._may_wait = True
        self._step_mark: record_function | None = None
        self._phase_mark: record_function | None = None
        self._whole_steps = 0
        self._trained = False
        self.files: list[Path] = []
        """The trace files written."""
        self.recorded_steps = 0
        """Whole steps in those of the schedule."""
        self.foreign_profiler = False
        """Whether a profiler that is not ours kept a step from being recorded."""

    @property
    def idle(self) -> Collection[str]:
        """The hooks of batches and phases, except in a window."""
        return ("add_batch", "on_phase_start", "on_phase_end") if self._profile is None else ()

    def on_step_start(self) -> None:
        """Warm up, or start to record, and mark the step. Nothing happens in steps that no window follows soon."""
        step = self._state.step
        self._follows = step >= self._due
        if self._follows:
            self._decide(step)
            self._notes.on_step_start()

    def _decide(self, step: int) -> None:
        action = self._plan.action(step)
        if action is Action.REST:
            self._left_out = False
            if self._recording.captures is None:
                self._due = self._plan.next_window(step) - LAST_STEPS
            return
        if self._left_out:
            self._left_out = not self._plan.ends_window(step)
            return
        if self._profile is None and not self._begin(step):
            return
        if action is Action.RECORD:
            if not self._state.recording and not self._timed(self._start):
                return
            self._step_mark = mark = record_function(f"ProfilerStep#{self._state.number}")
            mark.__enter__()  # type: ignore[no-untyped-call]

    def add_batch(self, batch: Any) -> None:
        self._notes.add_batch(batch)

    def on_step_end(self) -> None:
        """Close the step's mark, and the window after its last step."""
        if not self._follows:
            return
        self._notes.on_step_end()
        if not self._state.recording:
            return
        self._close_marks()
        self._whole_steps += 1
        if self._plan.ends_window(self._state.step):
            self._stop()

    def on_step_dropped(self) -> None:
        """End the window with a step that is cut off."""
        self._notes.on_step_cut()
        self._stop()

    def on_training_pause(self) -> None:
        """End the window: training pauses here."""
        self._notes.on_step_cut()
        self._stop()

    def on_phase_start(self, phase: Phase) -> None:
        if self._state.recording:
            self._trained |= phase is Phase.FORWARD
            self._phase_mark = mark = record_function(phase.value)
            mark.__enter__()  # type: ignore[no-untyped-call]

    def on_phase_end(self, phase: Phase) -> None:  # noqa: ARG002 - there is one open range at most
        if self._phase_mark is not None:
            self._phase_mark.__exit__(None, None, None)
            self._phase_mark = None

    def stop_waiting(self) -> None:
        """Do not wait for the device any more: it may wait for a rank that is gone."""
        self._may_wait = False

    def finish(self) -> None:
        """End the window: training has ended."""
        self._stop()

    def close(self) -> None:
        """Look out for other profilers no longer, and stop without writing a file."""
        self._watch.restore()
        self._trained = False
        self._whole_steps = 0
        self._stop()

    def notes(self) -> list[str]:
        """Say which part of the schedule was not recorded, and why. A budget that is used up is reason enough."""
        if self._refused:
            return [f"max_overhead is used up: {self._refused} further windows of the profiler were left out."]
        whole, foreign = self._state.whole_steps, self.foreign_profiler
        return recording_notes(self._plan.schedule, whole, self.recorded_steps, foreign_profiler=foreign)

    def _begin(self, step: int) -> bool:
        """Begin a window, if it may."""
        if not self._may_begin():
            self._refused += 1
            self._left_out = not self._plan.ends_window(step)
            return False
        self._capture, self._begun_at = self._plan.capture_at(step), step
        self._pause_ns = self._export_ns = self._trace_bytes = self._whole_steps = 0
        return self._timed(self._prepare)

    def _timed(self, function: Callable[[], T]) -> T:
        """Call a function and count its time as a pause of training."""
        begin_ns = time.perf_counter_ns()
        try:
            return function()
        finally:
            self._pause_ns += time.perf_counter_ns() - begin_ns

    def _prepare(self) -> bool:
        """Begin to warm up, unless another profiler is at work: two would empty each other's recording."""
        if self._gave_way:
            return False
        if recorder_is_taken() or not self._recorder.acquire(blocking=False):
            self.foreign_profiler = True
            return False
        try:
            # Kept only now: a profiler that failed to prepare must not be started, not even to stop it: it would crash.
            self._profile = self._prepared()
            self._state.profiling = True
            self._notes.on_warm_up()
            self.idle_changes()
        finally:
            if self._profile is None:
                self._recorder.release()
        return True

    def _prepared(self) -> profile:
        prepared = new_recorder(self._recording, self._device_type)
        for key, note in self._notes.before_window():
            prepared.preset_metadata_json(key, note)
        with _no_advice_on_cycles():
            WindowProfiler._preparing = True
            try:
                prepared.prepare_trace()
            finally:
                WindowProfiler._preparing = False
        return prepared

    def _give_way(self) -> None:
        """Leave the recorder to another profiler before that takes it, and to it alone for the rest of the fit.

        Torch has one recorder a process. A profiler that takes it from another leaves that one with a session that is
        gone: to start or export it then ends the process. So this one gives way also while it is at rest: one that
        warms up is not to be seen later, and would lose the recorder to ours.
        """
        if WindowProfiler._preparing:
            return  # one of our own, which takes it only when no other has it, and stops by itself
        self._watch.restore()
        self.foreign_profiler = self._gave_way = True
        with self._errors.instead("the window in which another torch.profiler was started is lost"):
            self._stop()

    def _start(self) -> bool:
        if self._profile is None or recorder_is_taken():
            self._stop()
            return False
        self._notes.before_recording()
        if self._recording.with_stack:
            self._make_quiet(self._profile)
        try:
            self._profile.start_trace()
        finally:
            self._state.recording = recorder_is_taken()  # a start that fails half-way has to be stopped, too
        self._whole_steps = 0
        self._trained = False
        self._notes.on_recording()
        return True

    def _make_quiet(self, prepared: profile) -> None:
        """End our own threads until the window ends. If others run, leave out Python functions where that is dangerous.

        The stop is harmless then: it visits only the threads of the start.
        """
        background.pause()
        others = background.other_threads() if threads_are_dangerous() else []
        if not others:
            return
        leave_out_functions(prepared)
        background.resume()
        if not self._said_dangerous:
            self._said_dangerous = True
            self._errors.warn(
                f"{self._errors.name}: with_stack=True is ignored: under Python 3.12 and later, torch before 2.12 can "
                f"crash the process when other threads run ({', '.join(others[:MAX_NAMED])}). "
                "Fix: install torch 2.12 or later."
            )

    def _stop(self) -> None:
        """Stop the profiler, and write the steps that it has recorded."""
        stopped, recording = self._profile, self._state.recording
        self._profile, self._state.profiling, self._state.recording = None, False, False
        if stopped is None:
            return
        try:
            self._end_recording(stopped, recording)
        finally:
            background.resume()
            self._notes.after_window()
            self._recorder.release()
            self.idle_changes()
        recorded = self._whole_steps if self._trace_bytes else 0
        first, last = self._state.number_of(self._begun_at), self._state.number
        window = RecordedWindow(
            self._capture, first, last, recorded, self._pause_ns, self._export_ns, self._trace_bytes
        )
        self._on_window(window)

    def _end_recording(self, stopped: profile, recording: bool) -> None:
        begin_ns = time.perf_counter_ns()
        # Another profiler that was started since has taken over: our session is gone, and asking for it would crash.
        cancelled = recording is not recorder_is_taken()
        if not cancelled:
            if not recording:
                leave_out_functions(stopped)
                stopped.start_trace()  # a profiler that is prepared has no other way back
            if self._step_mark is not None:
                with record_function(CUT_MARK):
                    pass
            if recording:
                for key, note in self._notes.of_window(self._whole_steps):
                    stopped.add_metadata_json(key, note)
                if self._device_type == "cuda" and self._may_wait:
                    torch.cuda.synchronize()  # torch would do it next: buffers may fill up until then
                if self._device_type != "cpu" and device_recording_stopped():
                    stopped.add_metadata_json(STOPPED_KEY, "true")
            if not self._may_wait and stopped.profiler is not None:
                stopped.profiler.use_device = None  # otherwise torch synchronizes before it stops
            stopped.stop_trace()
        self._pause_ns += time.perf_counter_ns() - begin_ns
        # Left only now, so that the ranges reach to the end of the trace: the recorder closes open ones.
        self._close_marks()
        if cancelled:
            self.foreign_profiler = True
        elif recording and (self._whole_steps or self._trained):
            self._export(stopped)
        if not cancelled:
            self._timed(self._detach)
        # The recording is large and part of a reference cycle, so memory would grow with each window until a garbage
        # collection (pytorch#193348). Forcing a collection costs more than the window.
        stopped.profiler = None

    def _close_marks(self) -> None:
        for mark in (self._phase_mark, self._step_mark):
            if mark is not None:
                mark.__exit__(None, None, None)
        self._phase_mark = self._step_mark = None

    def _detach(self) -> None:
        """Have CUPTI leave now.

        After a window it leaves with the next call to CUDA by anyone. That call may be in the middle of a step, which
        becomes slower, or in a window that starts at once, which then lacks its device work
        (https://github.com/pytorch/kineto/pull/1554).
        """
        if self._device_type == "cuda" and self._may_wait:
            torch.cuda.synchronize()  # the device has nothing left to do: it did all of it before the recorder stopped

    def _export(self, stopped: profile) -> None:
        begin_ns = time.perf_counter_ns()
        try:
            folder = self._plan.folder_for(self._capture)
            path = export_trace(stopped, folder, self._rank, time.time_ns(), **export_options(stopped))
            self._trace_bytes = path.stat().st_size
        except Exception as error:
            self._errors.report("the trace of a window is lost", error)
            return
        finally:
            self._export_ns = time.perf_counter_ns() - begin_ns
        self.files.append(path)
        self.recorded_steps += 0 if self._capture else self._whole_steps
