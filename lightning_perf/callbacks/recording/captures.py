"""Captures: windows that no schedule foresaw, when steps turn slow or somebody asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.recording.capture_requests import FileRequests, SignalRequests
from lightning_perf.callbacks.recording.schedule import WindowPlan
from lightning_perf.callbacks.recording.slow_steps import CaptureOptions, SlowStepDetector
from lightning_perf.callbacks.steps.fit_state import FitState, StepObserver
from lightning_perf.run_files.captures import CAPTURES, CaptureRecord, CaptureTrigger, Slowdown, capture_name

__all__ = ["Captures"]


class Captures(StepObserver):
    """Watches step times and requests, and adds captures to the plan. It waits for nothing, the device least of all.

    Args:
        config: What to capture.
        state: The state of the fit.
        plan: The plan of the fit.
        rank: This process's rank.
        world_size: Ranks of the run.
        folder: The run's folder.
        errors: Where it is reported that a request cannot be heard.
        now_ns: The host's clock.
    """

    def __init__(
        self,
        config: CaptureOptions,
        state: FitState,
        *,
        plan: WindowPlan,
        rank: int,
        world_size: int,
        folder: Path,
        errors: ErrorReporter,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._config = config
        self._state = state
        self._plan = plan
        self._path = CAPTURES.path(folder, rank)
        self._errors = errors
        self._now_ns = now_ns
        self._detector = SlowStepDetector(config)
        self._files = FileRequests(folder, rank=rank, world_size=world_size) if config.on_file else None
        self._signals: SignalRequests | None = None
        self._begin_ns = 0
        self._open = False
        self._judged = False
        self._settling = True  # the first step of a fit is like no other
        self._slow = 0
        self._quiet_until = 0
        self._bytes = 0
        self._waiting: tuple[CaptureTrigger, int] | None = None
        self.full = False
        """Whether a capture was left out for want of disk space."""

    def window_ends(self, trace_bytes: int) -> None:
        """Count what a capture takes of the disk."""
        self._bytes += trace_bytes

    def listen(self) -> None:
        """Hear signals from now on, where that is asked for; `close` ends it."""
        if not self._config.on_signal:
            return
        try:
            self._signals = SignalRequests()
        except RuntimeError as error:
            self._errors.report("captures on SIGUSR2 are off", error)

    def close(self) -> None:
        """Hear signals no longer; call it when the fit ends."""
        if self._signals is not None:
            self._signals.remove()
            self._signals = None

    def on_step_start(self) -> None:
        """Start the clock."""
        self._open = True
        profiled = self._state.profiling
        self._judged = not self._settling and not profiled
        self._settling = profiled
        self._begin_ns = self._now_ns()

    def on_step_end(self) -> None:
        """Judge the step, and look for requests."""
        if not self._open:
            return
        self._open = False
        now_ns = self._now_ns()
        step_ns = now_ns - self._begin_ns
        step = self._state.step
        # A step in which a checkpoint is saved takes longer, and that is known.
        judged = self._judged and not self._state.checkpoint_saved
        slowdown = self._detector.add(step_ns) if judged else None
        if slowdown is not None and self._slow < self._config.max_captures and step >= self._quiet_until:
            self._slow += self._add(CaptureTrigger.SLOW_STEPS, step + 1, slowdown)
        if self._signals is not None and self._signals.take():
            self._waiting = (CaptureTrigger.SIGNAL, step + 1)
        if self._files is not None:
            start = self._files.look(now_ns, self._state.number_of(step + 1), step_ns)
            if start is not None:
                self._waiting = (CaptureTrigger.FILE, self._state.step_of(start))
        # What was asked for waits until no other window is in the way.
        if self._waiting is not None:
            trigger, asked = self._waiting
            if self._add(trigger, max(asked, step + 1)):
                self._waiting = None

    def on_step_dropped(self) -> None:
        """Leave the step out."""
        self._open = False

    def on_training_pause(self) -> None:
        """Judge neither a step that is interrupted nor the first one after."""
        self._judged = False
        self._settling = True

    def _add(self, trigger: CaptureTrigger, start: int, slowdown: Slowdown | None = None) -> bool:
        if self._bytes >= self._config.max_bytes:
            self.full = True
            return True  # there is no room for a later one either
        folder = capture_name(trigger, self._state.number_of(start))
        warmup, active = self._config.warmup, self._config.active
        if not self._plan.capture(start, warmup=warmup, active=active, folder=folder):
            return False
        self._quiet_until = start + warmup + active + self._config.cooldown
        record = CaptureRecord(folder, trigger, self._state.number, slowdown)
        try:
            CAPTURES.append(self._path, record)
        except OSError as error:
            self._errors.report(f"why {folder} was captured is not saved", error)
        return True
