"""The step timer with clocks that are turned by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_perf.callbacks.steps.fit_state import FitState, Phase
from lightning_perf.callbacks.steps.step_timer import StepTimer, cuda_clock
from lightning_perf.run_files.steps import StepSample
from tests.callbacks.steps.test_device_time import MS, Device, Event


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
