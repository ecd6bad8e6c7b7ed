"""The profiler: `torch.profiler` around the steps that the schedule names, one trace file a window."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, TypeVar

import torch
from torch.profiler import profile

from lightning_perf.analysis.recorded_windows import RecordedWindow
from lightning_perf.callbacks.error_reporter import Faults
from lightning_perf.callbacks.recording.recorder_watch import RecorderWatch, recorder_is_taken
from lightning_perf.callbacks.recording.schedule import Action
from lightning_perf.callbacks.recording.step_marks import StepMarks
from lightning_perf.callbacks.recording.torch_profiler import RecordingOptions, new_recorder
from lightning_perf.callbacks.recording.window_plan import WindowPlan
from lightning_perf.callbacks.step_numbers import StepNumbers
from lightning_perf.callbacks.steps.phases import Phase
from lightning_perf.callbacks.steps.step_tracker import StepObserver
from lightning_perf.callbacks.trace_export import export_trace

__all__ = ["WindowProfiler"]

T = TypeVar("T")


class WindowProfiler(StepObserver):
    """Records windows of whole steps and writes each to a trace file.

    A window ends with its last step, or earlier where validation or the end of an epoch comes between: what is left of
    it is then recorded into a further file. Each step stands in the trace as ``ProfilerStep#n``, its phases inside. A
    step that is cut off holds a `lightning_perf.trace.steps.CUT_MARK`, and its own mark ends with the recording.

    `torch.profiler.profile.step` is not used: it would put the marks where the window is moved on, and cannot leave
    out what happens between two steps.

    Args:
        plan: Which steps to record, and where to.
        options: What to record of them.
        device_type: Type of the device that trains (``"cpu"``, ``"cuda"``, …).
        numbers: The numbers of the fit's steps.
        rank: This process's rank.
        faults: Where a failing export is reported.
        may_begin: Asked before each window; on False it is left out as a whole.
        on_window: Told of each window that has ended, whether it left a trace or not.
        page_faults: Those of a step, asked before each window; None where they are not counted.
    """

    _recorder: ClassVar[threading.Lock] = threading.Lock()
    """Held from warm-up until the trace is written: torch has one recorder a process, for all of its threads."""
    _preparing: ClassVar[bool] = False
    """Whether it is one of ours that takes the recorder just now."""

    def __init__(
        self,
        *,
        plan: WindowPlan,
        options: RecordingOptions,
        device_type: str,
        numbers: StepNumbers,
        rank: int,
        faults: Faults,
        may_begin: Callable[[], bool] = lambda: True,
        on_window: Callable[[RecordedWindow], None] = lambda _: None,
        page_faults: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._options = options
        self._device_type = device_type
        self._numbers = numbers
        self._rank = rank
        self._faults = faults
        self._may_begin = may_begin
        self._on_window = on_window
        self._page_faults = page_faults
        self._left_out = False
        self._capture = ""
        self._begun_at = 0
        self._pause_ns = 0
        self._export_ns = 0
        self._trace_bytes = 0
        self._profile: profile | None = None
        self._watch = RecorderWatch(self._give_way)
        self._gave_way = False
        self._recording = False
        self._index = 0
        self._marks = StepMarks()
        self._whole_steps = 0
        self._trained = False
        self.files: list[Path] = []
        """The trace files written."""
        self.recorded_steps = 0
        """Whole steps in those of the schedule."""
        self.foreign_profiler = False
        """Whether a profiler that is not ours kept a step from being recorded."""

    @property
    def active(self) -> bool:
        """Whether the profiler warms up or records."""
        return self._profile is not None

    def step_begins(self, index: int) -> None:
        """Warm up, or start to record, and mark the step."""
        self._index = index
        action = self._plan.action(index)
        if action is Action.REST:
            self._left_out = False
            return
        if self._left_out:
            self._left_out = not self._plan.ends_window(index)
            return
        if self._profile is None and not self._begin(index):
            return
        if action is Action.RECORD:
            if not self._recording and not self._timed(self._start):
                return
            self._marks.begin_step(self._numbers.of(index))

    def step_ends(self) -> None:
        """Close the step's mark, and the window after its last step."""
        if not self._recording:
            return
        self._marks.end()
        self._whole_steps += 1
        if self._plan.ends_window(self._index):
            self._stop()

    def step_dropped(self) -> None:
        """End the window with a step that is cut off."""
        self._stop()

    def training_pauses(self) -> None:
        """End the window: what follows is no training."""
        self._stop()

    @property
    def follows_phases(self) -> bool:
        """All of them while it records."""
        return self._recording

    def phase_begins(self, phase: Phase) -> None:
        """Open the phase's range."""
        if self._recording:
            self._trained |= phase is Phase.FORWARD
            self._marks.begin_phase(phase)

    def phase_ends(self, phase: Phase) -> None:  # noqa: ARG002 - there is one open range at most
        """Close the phase's range."""
        self._marks.end_phase()

    def abandon(self) -> None:
        """Stop without writing a file."""
        self._trained = False
        self._whole_steps = 0
        self._stop()

    def close(self) -> None:
        """Look out for other profilers no longer; call it when the fit ends."""
        self._watch.remove()

    def _begin(self, index: int) -> bool:
        """Begin a window, if it may."""
        if not self._may_begin():
            self._left_out = not self._plan.ends_window(index)
            return False
        self._capture, self._begun_at = self._plan.capture_at(index), index
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
        finally:
            if self._profile is None:
                self._recorder.release()
        return True

    def _prepared(self) -> profile:
        prepared = new_recorder(self._options, self._device_type, self._page_faults())
        with warnings.catch_warnings():
            # Before 2.12 torch warns at every start that a second cycle would clear the first. There is none, and what
            # it advises (acc_events=True) makes Python objects of all events on the spot.
            warnings.filterwarnings("ignore", message="Warning: Profiler clears events")
            WindowProfiler._preparing = True
            try:
                prepared.prepare_trace()
            finally:
                WindowProfiler._preparing = False
        return prepared

    def _give_way(self) -> None:
        """Leave the recorder to another profiler before that takes it, and to it alone for the rest of the fit.

        Also while ours is at rest: one that warms up is not to be seen later, and would lose the recorder to ours.
        """
        if WindowProfiler._preparing:
            return  # one of our own, which takes it only when no other has it, and stops by itself
        self.close()
        self.foreign_profiler = self._gave_way = True
        try:
            self._stop()
        except Exception as error:
            self._faults.report("the window in which another torch.profiler was started is lost", error)

    def _start(self) -> bool:
        if self._profile is None or recorder_is_taken():
            self._stop()
            return False
        try:
            self._profile.start_trace()
        finally:
            self._recording = recorder_is_taken()  # a start that fails half-way has to be stopped, too
        self._whole_steps = 0
        self._trained = False
        return True

    def _stop(self) -> None:
        """Stop whatever the profiler does, and write what it has of training."""
        stopped, recording = self._profile, self._recording
        self._profile, self._recording = None, False
        if stopped is None:
            return
        try:
            self._end_recording(stopped, recording)
        finally:
            self._recorder.release()
        recorded = self._whole_steps if self._trace_bytes else 0
        first, last = self._numbers.of(self._begun_at), self._numbers.of(self._index)
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
                stopped.start_trace()  # a profiler that is prepared has no other way back
            self._marks.cut()
            stopped.stop_trace()
        self._pause_ns += time.perf_counter_ns() - begin_ns
        # Left only now, so that in the trace they reach to its end: the recorder closes what is open.
        self._marks.end()
        if cancelled:
            self.foreign_profiler = True
        elif recording and (self._whole_steps or self._trained):
            self._export(stopped)
        if not cancelled:
            self._timed(self._detach)
        # The recording is large and part of a cycle: memory would grow window by window until the garbage collector
        # comes by (pytorch#193348), and asking it to come costs more than the window.
        stopped.profiler = None

    def _detach(self) -> None:
        """Have CUPTI leave now.

        After a window it leaves with the next call to CUDA, whosesoever: in the midst of a step, which that makes
        slower, or of a window that begins at once, which would then have no device work
        (https://github.com/pytorch/kineto/pull/1554).
        """
        if self._device_type == "cuda":
            torch.cuda.synchronize()  # the device has nothing left to do: it did all of it before the recorder stopped

    def _export(self, stopped: profile) -> None:
        begin_ns = time.perf_counter_ns()
        try:
            folder = self._plan.folder_for(self._capture)
            path = export_trace(stopped, folder, f"rank{self._rank}.{time.time_ns()}")
            self._trace_bytes = path.stat().st_size
        except Exception as error:
            self._faults.report("the trace of a window is lost", error)
            return
        finally:
            self._export_ns = time.perf_counter_ns() - begin_ns
        self.files.append(path)
        self.recorded_steps += 0 if self._capture else self._whole_steps
