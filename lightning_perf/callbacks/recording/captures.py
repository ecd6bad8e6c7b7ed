"""Captures: windows outside of the schedule, when steps become slow or on demand. And the budget of all windows."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

from lightning_perf.callbacks.recording.recording_plan import LEAST_HISTORY, CaptureOptions
from lightning_perf.callbacks.recording.schedule import WindowPlan
from lightning_perf.callbacks.steps.fit_state import FitContext
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.captures import (
    CAPTURES,
    CaptureRecord,
    CaptureTrigger,
    RecordedWindow,
    Slowdown,
    capture_name,
)
from lightning_perf.run_files.run_folder import read_capture_start, take_capture_request, write_capture_start
from lightning_perf.run_files.steps import StepSample

LIMIT_EVERY = 10
"""Steps between two calculations of the limit: one costs some 10 µs, and the median hardly changes in ten steps."""

MAD_TO_DEVIATION = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""

LOOK_EVERY_NS = 1_000_000_000
"""Time between two checks for the file. On a network file system a check can take milliseconds."""

AGREED_AHEAD_NS = 2_500_000_000
"""How far ahead rank 0 schedules a capture of several ranks: by then all of them have checked the file."""


class SlowStepDetector:
    """Judges each step in order. Slow steps enter the history too, once their row has ended."""

    def __init__(self, config: CaptureOptions) -> None:
        self._config = config
        self._history: deque[int] = deque(maxlen=config.history)
        self._row: list[int] = []
        self._usual_ns = 0
        self._limit_ns: int | None = None
        self._age = 0

    def add(self, step_ns: int) -> Slowdown | None:
        """Judge a step."""
        if self._limit_ns is None or step_ns <= self._limit_ns:
            if self._row:
                self._end_row()
            self._history.append(step_ns)
            self._age += 1
            if self._age >= LIMIT_EVERY and len(self._history) >= LEAST_HISTORY:
                self._set_limit()
            return None
        self._row.append(step_ns)
        if len(self._row) < self._config.sustained:
            return None
        found = Slowdown(self._usual_ns, self._limit_ns, tuple(self._row))
        self._end_row()
        return found

    def _end_row(self) -> None:
        self._history += self._row
        self._row = []
        self._set_limit()

    def _set_limit(self) -> None:
        usual = median(self._history)
        deviation = MAD_TO_DEVIATION * median(abs(step_ns - usual) for step_ns in self._history)
        self._usual_ns = round(usual)
        self._limit_ns = round(usual + max(self._config.deviations * deviation, self._config.min_excess * usual))
        self._age = 0


class FileRequests:
    """Looks for the file ``profile-now``. With several ranks, rank 0 announces the step at which all start."""

    def __init__(self, folder: Path, *, rank: int, world_size: int) -> None:
        self._folder = folder
        self._rank = rank
        self._world_size = world_size
        self._looked_ns: int | None = None
        self._answered = read_capture_start(folder)

    def look(self, now_ns: int, step: int, step_ns: int) -> int | None:
        """Look for a request, at most once per second."""
        if self._looked_ns is not None and now_ns - self._looked_ns < LOOK_EVERY_NS:
            return None
        self._looked_ns = now_ns
        return self._take(step, step_ns) if self._rank == 0 else self._hear(step)

    def _take(self, step: int, step_ns: int) -> int | None:
        if not take_capture_request(self._folder):
            return None
        if self._world_size == 1:
            return step
        start = step + -(-AGREED_AHEAD_NS // max(step_ns, 1))
        write_capture_start(self._folder, start)
        return start

    def _hear(self, step: int) -> int | None:
        start = read_capture_start(self._folder)
        if start is None or start == self._answered:
            return None
        self._answered = start
        return max(start, step)


class SignalRequests:
    """Handles SIGUSR2 until it is removed, and also calls the previous handler.

    Raises:
        RuntimeError: This is not the main thread, or the system has no such signal.
    """

    def __init__(self) -> None:
        number = getattr(signal, "SIGUSR2", None)
        if number is None:
            raise RuntimeError("this system has no SIGUSR2")
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signals can be handled in the main thread only")
        self._number = number
        self._heard = False
        self._previous: Any = signal.getsignal(number)
        self._handler: Callable[[int, FrameType | None], None] = self._hear
        signal.signal(number, self._handler)

    def take(self) -> bool:
        """Return whether the signal has arrived since the last call."""
        heard, self._heard = self._heard, False
        return heard

    def remove(self) -> None:
        """Restore the previous handler, unless another one has been installed since."""
        if signal.getsignal(self._number) == self._handler:
            with contextlib.suppress(ValueError):  # only the main thread may change signal handlers
                signal.signal(self._number, signal.SIG_DFL if self._previous is None else self._previous)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._heard = True
        if callable(self._previous):
            self._previous(number, frame)


class Captures(FitObserver):
    """Watches step times and requests, and adds captures to the plan. It never waits, not even for the device.

    On a GPU only times of the device count, which come some steps late. The clock of a host that runs ahead of its
    device would not see slow steps.
    """

    consequence = "nothing is captured any more"

    def __init__(
        self,
        config: CaptureOptions,
        context: FitContext,
        folder: Path,
        plan: WindowPlan,
        *,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        loop = context.loop
        self._config = config
        self._state = context.state
        self._plan = plan
        self._path = CAPTURES.path(folder, loop.rank)
        self._errors = context.errors
        self._now_ns = now_ns
        self._detector = SlowStepDetector(config)
        self._files = FileRequests(folder, rank=loop.rank, world_size=loop.world_size) if config.on_file else None
        self._signals: SignalRequests | None = None
        self._step_ns = 0  # of the last step with a known time
        self._judged = False
        self._settling = True  # the first step of a fit is unlike the others
        self._slow = 0
        self._quiet_until = 0
        self._bytes = 0
        self._waiting: tuple[CaptureTrigger, int] | None = None
        self._timed_by_device = loop.device.type == "cuda"
        self._samples: deque[StepSample] = deque()
        self._to_judge: set[int] = set()
        self._full = False  # whether a capture was left out because `max_bytes` was reached

    def on_window(self, window: RecordedWindow) -> None:
        """Count the disk space of a capture."""
        self._bytes += window.trace_bytes if window.capture else 0

    def on_sample(self, sample: StepSample) -> None:
        self._samples.append(sample)

    def open(self) -> None:
        """Handle signals if the options ask for it, until `close`."""
        if self._config.on_signal:
            with self._errors.instead("captures on SIGUSR2 are off"):
                self._signals = SignalRequests()

    def notes(self) -> list[str]:
        return ["Captures take max_bytes of the disk: further ones were left out."] if self._full else []

    def close(self) -> None:
        """Stop handling signals; call it when the fit ends."""
        if self._signals is not None:
            self._signals.remove()
            self._signals = None

    def on_step_start(self) -> None:
        profiled = self._state.profiling
        self._judged = not self._settling and not profiled
        self._settling = profiled

    def on_step_end(self) -> None:
        """Judge the step, and look for requests."""
        step = self._state.step
        # A step in which a checkpoint is saved takes longer, and that is known.
        if self._judged and not self._state.checkpoint_saved:
            self._to_judge.add(self._state.number)
        slowdown = self._judge_samples()
        if slowdown is not None and self._slow < self._config.max_captures and step >= self._quiet_until:
            self._slow += self._add(CaptureTrigger.SLOW_STEPS, step + 1, slowdown)
        if self._signals is not None and self._signals.take():
            self._waiting = (CaptureTrigger.SIGNAL, step + 1)
        if self._files is not None and self._step_ns:
            start = self._files.look(self._now_ns(), self._state.number_of(step + 1), self._step_ns)
            if start is not None:
                self._waiting = (CaptureTrigger.FILE, self._state.step_of(start))
        # A request waits until no other window is in the way.
        if self._waiting is not None:
            trigger, asked = self._waiting
            if self._add(trigger, max(asked, step + 1)):
                self._waiting = None

    def _judge_samples(self) -> Slowdown | None:
        """Judge the steps with times that have arrived by now; the last slowdown counts."""
        slowdown = None
        while self._samples:
            sample = self._samples.popleft()
            self._step_ns = sample.step_ns
            if sample.step in self._to_judge and (sample.device_ns is not None or not self._timed_by_device):
                slowdown = self._detector.add(sample.step_ns) or slowdown
            self._to_judge.discard(sample.step)
        return slowdown

    def on_training_pause(self) -> None:
        """Judge neither a step that is interrupted nor the first one after."""
        self._judged = False
        self._settling = True

    def _add(self, trigger: CaptureTrigger, start: int, slowdown: Slowdown | None = None) -> bool:
        if self._bytes >= self._config.max_bytes:
            self._full = True
            return True  # a later one would not fit either
        folder = capture_name(trigger, self._state.number_of(start))
        warmup, active = self._config.warmup, self._config.active
        if not self._plan.capture(start, warmup=warmup, active=active, folder=folder):
            return False
        self._quiet_until = start + warmup + active + self._config.cooldown
        record = CaptureRecord(folder, trigger, self._state.number, slowdown)
        with self._errors.instead(f"why {folder} was captured is not saved"):
            CAPTURES.append(self._path, record)
        return True


HISTORY = 50
"""Steps without the profiler that its steps are compared with."""


class OverheadBudget(FitObserver):
    """Counts the cost of the profiler, and decides whether another window may start.

    The cost is the time of its pauses and exports, plus the excess of profiled steps over the median of the last steps
    without it. The first window is always allowed: without one nothing is known. A further one is, if with the mean
    cost of a window so far the limit still holds.
    """

    def __init__(self, limit: float | timedelta, *, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._limit = limit
        self._now_ns = now_ns
        self._start_ns = now_ns()
        self._usual: deque[int] = deque(maxlen=HISTORY)
        self._windows = 0
        self.cost_ns = 0
        """The cost of the profiler so far."""

    def allows(self) -> bool:
        """Whether a window may start now."""
        if not self._windows:
            return True
        expected_ns = self.cost_ns + self.cost_ns / self._windows
        if isinstance(self._limit, timedelta):
            limit_ns = self._limit.total_seconds() * 1e9
        else:
            limit_ns = self._limit * (self._now_ns() - self._start_ns)
        return expected_ns <= limit_ns

    def on_window(self, window: RecordedWindow) -> None:
        """Count a window, and the time that training waited for it between steps."""
        self._windows += 1
        self.cost_ns += window.pause_ns + window.export_ns

    def on_sample(self, sample: StepSample) -> None:
        """Count a step to those without the profiler, or its excess to the cost."""
        if not sample.profiled:
            self._usual.append(sample.step_ns)
        elif self._usual:
            self.cost_ns += max(sample.step_ns - round(median(self._usual)), 0)
