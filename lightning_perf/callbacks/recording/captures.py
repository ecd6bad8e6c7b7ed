"""Captures: windows outside of the schedule, recorded when steps become slow or on demand."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

from lightning_perf.callbacks.recording.schedule import WindowPlan
from lightning_perf.callbacks.steps.fit_state import FitContext, StepObserver
from lightning_perf.run_files.captures import CAPTURES, CaptureRecord, CaptureTrigger, Slowdown, capture_name
from lightning_perf.run_files.run_folder import read_capture_start, take_capture_request, write_capture_start
from lightning_perf.run_files.steps import StepSample

LEAST_HISTORY = 20
"""Fewest steps for a meaningful median and spread."""

LIMIT_EVERY = 10
"""Steps between two calculations of the limit: one costs some 10 µs, and the median hardly changes in ten steps."""

MAD_TO_DEVIATION = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""

LOOK_EVERY_NS = 1_000_000_000
"""Time between two checks for the file. On a network file system a check can take milliseconds."""

AGREED_AHEAD_NS = 2_500_000_000
"""How far ahead rank 0 schedules a capture of several ranks: by then all of them have checked the file."""


@dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    """Settings for captures: which steps count as slow, and how many are recorded.

    A step is slow when it takes longer than ``median + max(deviations * 1.4826 * MAD, min_excess * median)`` of the
    last `history` steps (MAD: median absolute deviation from the median). When `sustained` steps in a row are slow, the
    next ones are recorded into a folder of their own, ``slow-step-120``. A change that lasts for more than half of
    `history` becomes the new usual. Some steps are not judged: those in which the profiler runs or a checkpoint is
    saved, and the first step after validation, an epoch's end or a window.

    Attributes:
        deviations: A step is slow from this many standard deviations on, estimated by the MAD.
        min_excess: A step is never slow if its excess is below this fraction of the median.
        history: Steps that the median is over.
        sustained: Slow steps in a row that start a capture.
        warmup: Steps in which the profiler runs but keeps nothing.
        active: Steps recorded in a capture.
        cooldown: Steps after a capture in which none is started.
        max_captures: Captures of slow steps in a fit, for each rank.
        max_bytes: No capture is started, not even on demand, once this rank's captures take this much disk space.
        on_file: Also capture when a file ``profile-now`` appears in the run's folder. The callback looks for it every
            second and deletes it. With several ranks, rank 0 does so for all.
        on_signal: Also capture on SIGUSR2, in the process that receives it.

    Raises:
        TypeError: A number has the wrong type.
        ValueError: A number is too small, or `history` is shorter than 20 steps.
    """

    deviations: float = 6.0
    min_excess: float = 0.25
    history: int = 100
    sustained: int = 3
    warmup: int = 1
    active: int = 3
    cooldown: int = 100
    max_captures: int = 3
    max_bytes: int = 512 * 2**20
    on_file: bool = True
    on_signal: bool = False

    def __post_init__(self) -> None:
        least = {"history": LEAST_HISTORY, "sustained": 1, "active": 1}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in ("on_file", "on_signal"):
                if not isinstance(value, bool):
                    raise TypeError(f"{item.name} must be True or False, not {value!r}")
                continue
            whole = item.name not in ("deviations", "min_excess")
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                raise TypeError(f"{item.name} is a {'whole number' if whole else 'number'}, not {value!r}")
            if not value >= least.get(item.name, 0):
                raise ValueError(f"{item.name}={value} is too small: give {least.get(item.name, 0)} or more")


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


class Captures(StepObserver):
    """Watches step times and requests, and adds captures to the plan. It never waits, not even for the device.

    On a GPU only times of the device count, which come some steps late. The clock of a host that runs ahead of its
    device would not see slow steps.
    """

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
        self._step_ns = 0  # of the last step whose time is known
        self._judged = False
        self._settling = True  # the first step of a fit is unlike the others
        self._slow = 0
        self._quiet_until = 0
        self._bytes = 0
        self._waiting: tuple[CaptureTrigger, int] | None = None
        self._timed_by_device = loop.device.type == "cuda"
        self._samples: deque[StepSample] = deque()
        self._to_judge: set[int] = set()
        self.full = False
        """Whether a capture was left out because `max_bytes` was reached."""

    def window_ends(self, trace_bytes: int) -> None:
        """Count the disk space of a capture."""
        self._bytes += trace_bytes

    def add(self, sample: StepSample) -> None:
        """Take the sample of a step that has ended, for the next judgement."""
        self._samples.append(sample)

    def listen(self) -> None:
        """Start to handle signals if the options ask for it, until `close`."""
        if not self._config.on_signal:
            return
        with self._errors.instead("captures on SIGUSR2 are off"):
            self._signals = SignalRequests()

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
            self.full = True
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
