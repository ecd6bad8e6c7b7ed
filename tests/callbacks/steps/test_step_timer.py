"""The step timer on a clock that is turned by hand, and a simulated device that works through its stream behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_perf.analysis.steps.step_times import summarize_step_times
from lightning_perf.callbacks.recording.captures import Captures
from lightning_perf.callbacks.recording.recording_plan import CaptureOptions
from lightning_perf.callbacks.recording.schedule import Schedule, WindowPlan
from lightning_perf.callbacks.steps.fit_state import FitState, Phase
from lightning_perf.callbacks.steps.step_timer import DeviceClock, StepTimer, cuda_clock
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


class Bench:
    def __init__(self, device: Device | None = None) -> None:
        self.clock = device or Device()
        self.state = FitState(first_number=100)
        self.samples: list[StepSample] = []
        self.timer = StepTimer(
            self.state,
            on_sample=self.samples.append,
            device_clock=device.clock() if device else None,
            now_ns=lambda: self.clock.host_ns,
        )

    def start(self, index: int) -> None:
        self.state.step = index
        self.timer.on_step_start()

    def step(self, index: int, *, work_ms: float = 0) -> None:
        self.start(index)
        self.clock.launch(work_ms)
        self.clock.host_ns += 50
        self.timer.on_step_end()


def test_wall_time_and_data_wait() -> None:
    bench = Bench()
    bench.start(0)
    for wait in (7, 4):
        bench.timer.on_phase_start(Phase.FETCH)
        bench.clock.host_ns += wait
        bench.timer.on_phase_end(Phase.FETCH)
        bench.timer.on_phase_start(Phase.FORWARD)
        bench.timer.add_batch((torch.zeros(3, 2), torch.zeros(3)))
        bench.clock.host_ns += 20
        bench.timer.on_phase_end(Phase.FORWARD)
    bench.timer.on_step_end()
    assert bench.samples == [StepSample(100, 51, 11, None, 6, False)]


def test_an_interruption_is_no_step_time() -> None:
    bench = Bench(Device())
    bench.start(0)
    bench.clock.host_ns += 10
    bench.timer.on_training_pause()
    bench.clock.host_ns += 1_000
    bench.timer.on_training_resume()
    bench.clock.host_ns += 5
    bench.timer.on_step_end()
    bench.timer.on_training_pause()
    bench.clock.host_ns += 1_000
    bench.step(1)
    assert [(s.step_ns, s.device_ns) for s in bench.samples] == [(15, None), (50, 50)]


def test_device_time_comes_steps_later_and_in_order() -> None:
    device = Device()
    bench = Bench(device)
    for index in range(3):
        bench.step(index, work_ms=1.5)
    assert bench.samples == []
    device.host_ns = 3 * MS
    bench.step(3)
    assert [(s.step, s.device_ns) for s in bench.samples] == [(100, 1_500_000), (101, 1_500_000)]
    bench.timer.finish()
    assert [(s.step, s.device_ns) for s in bench.samples[2:]] == [(102, None), (103, None)]


def test_a_dropped_step_leaves_no_sample() -> None:
    bench = Bench(Device())
    bench.start(0)
    bench.timer.on_step_dropped()
    bench.timer.on_step_end()
    bench.step(0)
    assert [s.step for s in bench.samples] == [100]


def test_profiled_steps_are_marked() -> None:
    bench = Bench()
    bench.step(0)
    bench.state.profiling = True
    bench.step(1)
    assert [s.profiled for s in bench.samples] == [False, True]


class Surface:
    def shape(self) -> str:
        return "round"


def endless() -> list[Any]:
    batch: list[Any] = []
    batch.append(batch)
    return batch


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage")
def test_samples_are_unknown_if_one_batch_does_not_tell() -> None:
    bench = Bench()
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for step, odd in enumerate(("text", Surface(), nested, endless())):
        bench.start(step)
        for batch in (torch.zeros(3), odd, torch.zeros(3)):
            bench.timer.add_batch(batch)
        bench.timer.on_step_end()
    assert [sample.samples for sample in bench.samples] == [None] * 4


def test_an_interval_is_read_once_the_device_has_passed_it_and_its_events_are_used_again() -> None:
    device = Device()
    clock = device.clock(capacity=4)
    for _ in range(100):
        clock.begin()
        device.launch(1.5)
        interval = clock.end()
        assert interval is not None
        for passed_ns, done in ((1, False), (1_499_998, False), (1, True)):
            device.host_ns += passed_ns
            assert interval.done is done
        assert interval.elapsed_ns == 1_500_000
        clock.release(interval)
    assert len(device.made) == 2


def test_a_cancelled_interval_gives_its_event_back() -> None:
    device = Device()
    clock = device.clock(capacity=1)
    for _ in range(10):
        clock.begin()
        clock.cancel()
    assert clock.end() is None
    clock.begin()
    assert clock.end() is not None
    assert len(device.made) == 2


def test_an_end_that_overtook_its_begin_in_another_stream_is_waited_for() -> None:
    device = Device()
    clock = device.clock()
    clock.begin()
    interval = clock.end()
    assert interval is not None
    assert isinstance(interval.begin, Event)
    interval.begin.passes_ns = 1
    assert not interval.done
    device.host_ns += 1
    assert interval.done


def test_on_cuda_events_go_into_the_stream_of_the_runs_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: str) -> None:
            recorded.append(stream)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", "stream of {}".format)
    clock = cuda_clock(torch.device("cuda", 3))
    clock.begin()
    assert clock.end() is not None
    assert recorded == ["stream of cuda:3"] * 2


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
