"""The step timer: always on, without a profiler and without waiting for the device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from msgspec import Struct

from lightning_perf.callbacks.steps.batch_parts import batch_samples, count_tokens
from lightning_perf.callbacks.steps.fit_state import FitState, Phase
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.steps import StepSample

AT_ONCE_NS = 20_000
"""Within this time after the start of a step, nothing can have been launched."""

TimingEvent: TypeAlias = Any
"""A `torch.cuda.Event` with ``enable_timing=True``."""


class DeviceInterval(Struct, frozen=True):
    """The events of one step in the device's stream: two for the step, and two for each of its fetches."""

    begin: TimingEvent
    end: TimingEvent
    waits: tuple[tuple[TimingEvent, TimingEvent], ...] = ()

    @property
    def done(self) -> bool:
        """Whether the device has passed all events, which may be in different streams. Asking does not wait."""
        passed: bool = self.end.query() and self.begin.query() and all(a.query() and b.query() for a, b in self.waits)
        return passed

    @property
    def elapsed_ns(self) -> int:
        """Time of the step on the device's clock, in nanoseconds. Ask only when `done`.

        If the host runs ahead, this is the pace of the training, and the host's own clock is not.
        """
        elapsed_ms: float = self.begin.elapsed_time(self.end)
        return round(elapsed_ms * 1e6)

    @property
    def device_ns(self) -> int:
        """`elapsed_ns` without the time in which the device had nothing to do but wait for a batch."""
        waited_ns: int = sum(round(begin.elapsed_time(end) * 1e6) for begin, end in self.waits)
        return self.elapsed_ns - waited_ns

    @property
    def events(self) -> tuple[TimingEvent, ...]:
        """All events, each once: the first fetch may begin with the step."""
        every = (self.begin, self.end, *(event for wait in self.waits for event in wait))
        return tuple({id(event): event for event in every}.values())


class DeviceClock:
    """A ring of timing events, reused once they were read.

    If the device lags so far behind that all events are in flight, the step is not measured, and nobody waits.

    Args:
        stream: Returns the current stream of the run's device. The process may have switched to another device by
            then, and events of two devices have no time between them.
        capacity: Steps in flight at most, with one fetch each.
    """

    def __init__(self, new_event: Callable[[], TimingEvent], stream: Callable[[], Any], *, capacity: int = 64) -> None:
        self._new_event = new_event
        self._stream = stream
        self._left = 3 * capacity
        self._free: list[TimingEvent] = []
        self._begin: TimingEvent | None = None
        self._fetch: TimingEvent | None = None
        self._waits: list[tuple[TimingEvent, TimingEvent]] = []

    def begin(self) -> None:
        """Mark the start of a step in the current stream."""
        self.cancel()
        # Enough for the step's first fetch and its end, too.
        if len(self._free) + self._left >= 3:
            self._begin = self._mark()

    def fetch_start(self, *, at_once: bool = False) -> None:
        """Mark the start of a fetch. `at_once` says that nothing was launched since the start of the step."""
        if self._begin is None:
            return
        if at_once:
            self._fetch = self._begin
        elif len(self._free) + self._left >= 3:
            self._fetch = self._mark()
        else:
            self.cancel()  # with a wait that is not measured, the step would have too much device time

    def fetch_end(self) -> None:
        """Mark the end of a fetch."""
        if self._fetch is not None:
            self._waits.append((self._fetch, self._mark()))
            self._fetch = None

    def end(self) -> DeviceInterval | None:
        """Mark the end of a step that was begun. Read the interval once it is done, and then pass it to `release`."""
        if self._begin is None:
            return None
        interval = DeviceInterval(self._begin, self._mark(), tuple(self._waits))
        self._begin, self._fetch, self._waits = None, None, []
        return interval

    def cancel(self) -> None:
        """Forget the step that was begun."""
        if self._begin is not None:
            self.release(DeviceInterval(self._begin, self._fetch or self._begin, tuple(self._waits)))
            self._begin, self._fetch, self._waits = None, None, []

    def release(self, interval: DeviceInterval) -> None:
        """Take an interval's events back."""
        self._free += interval.events

    def _mark(self) -> TimingEvent:
        if self._free:
            event = self._free.pop()
        else:
            self._left -= 1
            event = self._new_event()
        event.record(self._stream())
        return event


def cuda_clock(device: torch.device) -> DeviceClock:
    """A clock for a CUDA (or ROCm) device."""

    def new_event() -> TimingEvent:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    return DeviceClock(new_event, lambda: torch.cuda.current_stream(device))


class StepTimer(FitObserver):
    """Times each whole step: step time, wait for data, device time, samples, tokens.

    With a device clock, the step time is the device's: if the host runs ahead, its own clock measures how fast it
    launches work. Time in which a step is interrupted, by validation between two micro-batches, does not count.

    Args:
        on_sample: Takes the samples, in the order of the steps. Their device time is known, or known to be missing.
        device_clock: Times the device; None on a device without timing events.
        phases_ns: Returns `StepSample.compute_ns` and `StepSample.wait_ns` of the time since the last call.
    """

    consequence = "steps are not timed any more"

    def __init__(
        self,
        state: FitState,
        *,
        on_sample: Callable[[StepSample], None],
        device_clock: DeviceClock | None = None,
        phases_ns: Callable[[], tuple[int | None, int | None]] | None = None,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._state = state
        self._on_sample = on_sample
        self._phases_ns = phases_ns
        self._device_clock = device_clock
        self._now_ns = now_ns
        self._waiting: deque[tuple[StepSample, DeviceInterval | None]] = deque()
        self._open = False
        self._begin_ns = 0
        self._pause_ns: int | None = None
        self._fetch_begin_ns = 0
        self._data_wait_ns = 0
        self._samples: int | None = 0
        self._tokens: int | None = 0
        self._has_tokens = True  # until a batch has none: the search takes longer than the rest of the timer
        self._profiled = False

    def add_batch(self, batch: Any) -> None:
        """Count the samples and the tokens of a batch towards the open step."""
        if self._samples is None:
            return
        samples = tokens = None
        try:
            samples = batch_samples(batch)
            if self._has_tokens and self._tokens is not None and (found := count_tokens(batch)) is not None:
                tokens = self._tokens + found
        except Exception:  # a batch may be any object, even one that contains itself
            samples = tokens = None
        self._has_tokens = tokens is not None
        self._samples, self._tokens = None if samples is None else self._samples + samples, tokens

    def finish(self) -> None:
        """Pass on all remaining samples, without a device time if the device has not finished them."""
        self._hand_on(all_of_them=True)

    def on_step_start(self) -> None:
        self._open = True
        self._pause_ns = None
        self._data_wait_ns = 0
        self._samples = self._tokens = 0
        self._profiled, self._state.own_passes = self._state.profiling, False
        if self._device_clock is not None:
            self._device_clock.begin()
        self._begin_ns = self._now_ns()

    def on_step_end(self) -> None:
        """Stop the clocks and keep the sample until its device time is known."""
        end_ns = self._now_ns()
        if not self._open:
            return
        self._open = False
        samples = self._samples or None
        tokens = self._tokens or None if samples is not None else None
        step_ns = end_ns - self._begin_ns
        profiled = self._profiled or self._state.own_passes
        sample = StepSample(self._state.number, step_ns, self._data_wait_ns, None, samples, profiled, tokens)
        if self._phases_ns is not None:
            compute_ns, wait_ns = self._phases_ns()
            sample = sample._replace(compute_ns=compute_ns, wait_ns=wait_ns)
        if self._device_clock is None:
            self._on_sample(sample)
        else:
            self._waiting.append((sample, self._device_clock.end()))
            self._hand_on()

    def on_step_dropped(self) -> None:
        self._open = False
        if self._phases_ns is not None:
            self._phases_ns()
        if self._device_clock is not None:
            self._device_clock.cancel()

    def on_training_pause(self) -> None:
        """Stop the host's clock. The device's cannot be stopped, so its time is dropped."""
        if self._open:
            self._pause_ns = self._now_ns()
            if self._device_clock is not None:
                self._device_clock.cancel()

    def on_training_resume(self) -> None:
        if self._pause_ns is not None:
            self._begin_ns += self._now_ns() - self._pause_ns
            self._pause_ns = None

    def on_phase_start(self, phase: Phase) -> None:
        if phase is Phase.FETCH:
            self._fetch_begin_ns = self._now_ns()
            if self._device_clock is not None:
                self._device_clock.fetch_start(at_once=self._fetch_begin_ns - self._begin_ns < AT_ONCE_NS)

    def on_phase_end(self, phase: Phase) -> None:
        if phase is Phase.FETCH:
            self._data_wait_ns += self._now_ns() - self._fetch_begin_ns
            if self._device_clock is not None:
                self._device_clock.fetch_end()

    def _hand_on(self, *, all_of_them: bool = False) -> None:
        while self._waiting:
            sample, interval = self._waiting[0]
            if interval is not None:
                if interval.done:
                    sample = sample._replace(step_ns=interval.elapsed_ns, device_ns=interval.device_ns)
                elif not all_of_them:
                    return
                if self._device_clock is not None:
                    self._device_clock.release(interval)
            self._waiting.popleft()
            self._on_sample(sample)
