"""The step timer: always on, without a profiler and without waiting for the device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Protocol

from lightning_perf.analysis.step_times import StepSample
from lightning_perf.callbacks.step_numbers import StepNumbers
from lightning_perf.callbacks.steps.device_clock import DeviceClock, DeviceInterval
from lightning_perf.callbacks.steps.phases import Phase
from lightning_perf.callbacks.steps.step_tracker import StepObserver

__all__ = ["SampleSink", "StepTimer", "batch_samples"]


class SampleSink(Protocol):
    """Takes the samples of a fit, in the order of the steps."""

    def add(self, sample: StepSample) -> None:
        """Take a sample whose device time is known, or known to be missing."""


class StepTimer(StepObserver):
    """Times each whole step: wall time, wait for data, device time, samples.

    The time that a step is interrupted (by validation between two micro-batches) is left out of it.

    Args:
        numbers: The numbers of the fit's steps.
        sink: Where samples go.
        is_profiling: Whether the profiler is at work, asked at the begin of each step.
        device_clock: Times the device; None on a device without timing events.
        now_ns: The host's clock.
    """

    def __init__(
        self,
        *,
        numbers: StepNumbers,
        sink: SampleSink,
        is_profiling: Callable[[], bool],
        device_clock: DeviceClock | None = None,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._numbers = numbers
        self._sink = sink
        self._is_profiling = is_profiling
        self._device_clock = device_clock
        self._now_ns = now_ns
        self._waiting: deque[tuple[int, int, int, int | None, bool, DeviceInterval | None]] = deque()
        self._step: int | None = None
        self._begin_ns = 0
        self._pause_ns: int | None = None
        self._fetch_begin_ns = 0
        self._data_wait_ns = 0
        self._samples: int | None = 0
        self._profiled = False

    def batch(self, batch: Any) -> None:
        """Count the samples of a batch towards the open step."""
        if self._samples is None:
            return
        try:
            samples = batch_samples(batch)
        except Exception:  # a batch may be of any make, and lead back to itself
            samples = None
        self._samples = None if samples is None else self._samples + samples

    def finish(self) -> None:
        """Hand on what still waits for its device time; where the device has not passed it, without one."""
        self._hand_on(all_of_them=True)

    def step_begins(self, index: int) -> None:
        """Start the clocks."""
        self._step = self._numbers.of(index)
        self._pause_ns = None
        self._data_wait_ns = 0
        self._samples = 0
        self._profiled = self._is_profiling()
        if self._device_clock is not None:
            self._device_clock.begin()
        self._begin_ns = self._now_ns()

    def step_ends(self) -> None:
        """Stop the clocks and keep the sample until its device time is known."""
        end_ns = self._now_ns()
        if self._step is None:
            return
        interval = self._device_clock.end() if self._device_clock is not None else None
        step_ns = end_ns - self._begin_ns
        samples = self._samples or None
        self._waiting.append((self._step, step_ns, self._data_wait_ns, samples, self._profiled, interval))
        self._hand_on()
        self._step = None

    def step_dropped(self) -> None:
        """Forget the step."""
        self._step = None
        if self._device_clock is not None:
            self._device_clock.cancel()

    def training_pauses(self) -> None:
        """Stop the host's clock; the device's cannot be stopped, so its time is given up."""
        if self._step is not None:
            self._pause_ns = self._now_ns()
            if self._device_clock is not None:
                self._device_clock.cancel()

    def training_resumes(self) -> None:
        """Let the host's clock run on."""
        if self._pause_ns is not None:
            self._begin_ns += self._now_ns() - self._pause_ns
            self._pause_ns = None

    @property
    def follows_phases(self) -> bool:
        """Fetches are all it needs."""
        return False

    def phase_begins(self, phase: Phase) -> None:
        """Note when a fetch begins."""
        if phase is Phase.FETCH:
            self._fetch_begin_ns = self._now_ns()

    def phase_ends(self, phase: Phase) -> None:
        """Add a fetch to the wait for data."""
        if phase is Phase.FETCH:
            self._data_wait_ns += self._now_ns() - self._fetch_begin_ns

    def _hand_on(self, *, all_of_them: bool = False) -> None:
        while self._waiting:
            step, step_ns, data_wait_ns, samples, profiled, interval = self._waiting[0]
            device_ns = None
            if interval is not None:
                if interval.done:
                    device_ns = interval.elapsed_ns
                elif not all_of_them:
                    return
                if self._device_clock is not None:
                    self._device_clock.release(interval)
            self._waiting.popleft()
            self._sink.add(StepSample(step, step_ns, data_wait_ns, device_ns, samples, profiled))


def batch_samples(batch: Any) -> int | None:
    """Count the samples of a batch: the first dimension of the first tensor in it.

    Args:
        batch: A tensor, or mappings, sequences and dataclasses of them, at any depth.

    Returns:
        The samples, or None when the batch has no tensor with a dimension.

    Example:
        >>> import numpy as np
        >>> batch_samples({"image": np.zeros((32, 3, 8, 8)), "label": np.zeros(32)})
        32
        >>> batch_samples(["only", "text"]) is None
        True
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    parts: Any = ()
    if isinstance(batch, (list, tuple)):
        parts = batch
    elif isinstance(batch, Mapping):
        parts = batch.values()
    elif is_dataclass(batch) and not isinstance(batch, type):
        parts = (getattr(batch, item.name) for item in fields(batch))
    return next((samples for samples in map(batch_samples, parts) if samples is not None), None)
