"""Step times and device times of a simulated device that works through its stream behind the host."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.analysis.steps.step_times import summarize_step_times
from lightning_perf.callbacks.recording.captures import Captures
from lightning_perf.callbacks.recording.recording_plan import CaptureOptions
from lightning_perf.callbacks.recording.schedule import Schedule, WindowPlan
from lightning_perf.callbacks.steps.fit_state import FitState, Phase
from lightning_perf.callbacks.steps.step_timer import DeviceClock, StepTimer
from lightning_perf.run_files.captures import CAPTURES
from lightning_perf.run_files.steps import StepSample
from tests.callbacks.training import context

MS = 1_000_000


@dataclass
class Device:
    """A host and a device: events pass when the device has done all work that was launched before them."""

    host_ns: int = 0
    busy_until_ns: int = 0
    made: list[Event] = field(default_factory=list)

    def launch(self, work_ms: float) -> None:
        self.busy_until_ns = max(self.busy_until_ns, self.host_ns) + round(work_ms * MS)

    def new_event(self) -> Event:
        self.made.append(Event(self))
        return self.made[-1]

    def clock(self, **options: int) -> DeviceClock:
        return DeviceClock(self.new_event, lambda: self, **options)


@dataclass
class Event:
    device: Device = field(repr=False)
    passes_ns: int = 0

    def record(self, stream: Device) -> None:
        assert stream is self.device
        self.passes_ns = max(stream.host_ns, stream.busy_until_ns)

    def query(self) -> bool:
        return self.passes_ns <= self.device.host_ns

    def elapsed_time(self, end_event: Event) -> float:
        assert self.query()
        assert end_event.query(), "asked for a time that would make the host wait"
        return (end_event.passes_ns - self.passes_ns) / MS


@dataclass
class Training:
    """Steps of micro-batches: fetch on the host, launch, and work on the device."""

    folder: Path
    device: Device = field(default_factory=Device)
    state: FitState = field(default_factory=FitState)
    samples: list[StepSample] = field(default_factory=list)
    capacity: int = 64

    def __post_init__(self) -> None:
        self.captures = Captures(
            CaptureOptions(warmup=0, active=1, sustained=3),
            context(self.folder, state=self.state, device="cuda"),
            self.folder,
            WindowPlan(Schedule(skip_first=10**6), self.folder),
            now_ns=lambda: self.device.host_ns,
        )
        self.timer = StepTimer(
            self.state,
            on_sample=self.take,
            device_clock=self.device.clock(capacity=self.capacity),
            now_ns=lambda: self.device.host_ns,
        )

    def take(self, sample: StepSample) -> None:
        self.samples.append(sample)
        self.captures.on_sample(sample)

    def step(
        self, *, fetch_ms: float, host_ms: float, work_ms: float, micro_batches: int = 1, ahead_steps: int = 0
    ) -> None:
        self.captures.on_step_start()
        self.timer.on_step_start()
        for _ in range(micro_batches):
            self.timer.on_phase_start(Phase.FETCH)
            self.device.host_ns += round(fetch_ms * MS)
            self.timer.on_phase_end(Phase.FETCH)
            self.device.launch(work_ms)
            self.device.host_ns += round(host_ms * MS)
        # The host runs ahead by at most so much work, as a queue or a read of the loss allows it.
        behind_ns = round(ahead_steps * micro_batches * work_ms * MS)
        self.device.host_ns = max(self.device.host_ns, self.device.busy_until_ns - behind_ns)
        self.timer.on_step_end()
        self.captures.on_step_end()
        self.state.step += 1


@pytest.mark.parametrize(
    ("step", "device_ms", "step_ms"),
    [
        ({"fetch_ms": 94, "host_ms": 1, "work_ms": 5}, 5, 99),  # it waits for data
        ({"fetch_ms": 20, "host_ms": 1, "work_ms": 5, "micro_batches": 3}, 15, 67),  # for each of its batches
        ({"fetch_ms": 2, "host_ms": 1, "work_ms": 10, "ahead_steps": 2}, 10, 10),  # a fetch behind work is no wait
    ],
)
def test_waits_for_data_are_no_device_time(
    tmp_path: Path, step: dict[str, Any], device_ms: float, step_ms: float
) -> None:
    training = Training(tmp_path)
    for _ in range(30):
        training.step(**step)
    times = summarize_step_times([sample for sample in training.samples if sample.device_ns is not None])
    assert times.device_mean_ns == pytest.approx(device_ms * MS, rel=0.05)
    assert times.mean_ns == pytest.approx(step_ms * MS, rel=0.05)


def test_the_step_time_of_a_host_that_runs_ahead_is_the_devices(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for number in range(40):
        # The host launches 20 steps within 20 ms, then waits for the device, e.g. to log the loss.
        training.step(fetch_ms=0, host_ms=1, work_ms=10, ahead_steps=0 if number % 20 == 19 else 10**3)
    measured = [sample for sample in training.samples if sample.device_ns is not None]
    assert len(measured) == 40
    assert {round(sample.step_ns / MS) for sample in measured} == {10}
    assert summarize_step_times(measured).outlier_steps == 0


def test_slow_steps_of_the_device_are_captured_while_the_host_runs_ahead(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(60):
        training.step(fetch_ms=0, host_ms=1, work_ms=10, ahead_steps=5)
    for _ in range(10):
        training.step(fetch_ms=0, host_ms=1, work_ms=30, ahead_steps=5)
    (record,) = CAPTURES.read(tmp_path / "captures.rank0.jsonl")
    assert record.slowdown is not None
    assert record.slowdown.usual_ns == 10 * MS
    assert record.slowdown.step_ns == (30 * MS,) * 3
    assert 63 <= record.step <= 70


def test_a_host_that_stops_once_in_a_while_is_no_slow_step(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for number in range(200):
        training.step(fetch_ms=0, host_ms=1, work_ms=10, ahead_steps=0 if number % 20 >= 17 else 10**3)
    assert not (tmp_path / "captures.rank0.jsonl").exists()


def test_without_free_events_a_step_is_not_measured(tmp_path: Path) -> None:
    training = Training(tmp_path, capacity=2)
    for _ in range(5):
        training.step(fetch_ms=1, host_ms=1, work_ms=10, micro_batches=2, ahead_steps=10**3)
    training.timer.finish()
    assert len(training.samples) == 5
    assert all(sample.device_ns is None for sample in training.samples)
    training.device.host_ns = training.device.busy_until_ns
    training.step(fetch_ms=1, host_ms=1, work_ms=10)
    training.timer.finish()
    assert training.samples[-1].device_ns == 10 * MS
