"""The step timer with clocks that are turned by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from lightning_perf.callbacks.steps.fit_state import FitState, Phase
from lightning_perf.callbacks.steps.step_timer import StepTimer, batch_samples
from lightning_perf.run_files.steps import StepSample
from tests.callbacks.steps.test_device_clock import FakeDevice


class Bench:
    def __init__(self, device: FakeDevice | None = None, *, capacity: int = 64) -> None:
        self.now = 1_000
        self.state = FitState(first_number=100)
        self.samples: list[StepSample] = []
        self.timer = StepTimer(
            self.state,
            on_sample=self.samples.append,
            device_clock=device.clock(capacity=capacity) if device else None,
            now_ns=lambda: self.now,
        )

    def start(self, index: int) -> None:
        self.state.step = index
        self.timer.on_step_start()

    def step(self, index: int, ns: int = 50) -> None:
        self.start(index)
        self.now += ns
        self.timer.on_step_end()


def test_wall_time_and_data_wait() -> None:
    bench = Bench()
    bench.start(0)
    for wait in (7, 4):
        bench.timer.on_phase_start(Phase.FETCH)
        bench.now += wait
        bench.timer.on_phase_end(Phase.FETCH)
        bench.timer.on_phase_start(Phase.FORWARD)
        bench.timer.count_samples((torch.zeros(3, 2), torch.zeros(3)))
        bench.now += 20
        bench.timer.on_phase_end(Phase.FORWARD)
    bench.timer.on_step_end()
    assert bench.samples == [StepSample(100, 51, 11, None, 6, False)]


def test_an_interruption_is_no_step_time() -> None:
    bench = Bench(FakeDevice(passed=10**6))
    bench.start(0)
    bench.now += 10
    bench.timer.on_training_pause()
    bench.now += 1_000
    bench.timer.on_training_resume()
    bench.now += 5
    bench.timer.on_step_end()
    bench.timer.on_training_pause()
    bench.now += 1_000
    bench.step(1)
    assert [(s.step_ns, s.device_ns) for s in bench.samples] == [(15, None), (50, 1_500_000)]


def test_device_time_comes_steps_later_and_in_order() -> None:
    device = FakeDevice()
    bench = Bench(device)
    for index in range(3):
        bench.step(index)
    assert bench.samples == []
    device.passed = 4
    bench.step(3)
    assert [(s.step, s.device_ns) for s in bench.samples] == [(100, 1_500_000), (101, 1_500_000)]
    bench.timer.finish()
    assert [(s.step, s.device_ns) for s in bench.samples[2:]] == [(102, None), (103, None)]


def test_a_device_that_lags_far_behind_is_not_waited_for() -> None:
    bench = Bench(FakeDevice(), capacity=2)
    for index in range(5):
        bench.step(index)
    bench.timer.finish()
    assert [s.step for s in bench.samples] == [100, 101, 102, 103, 104]


def test_a_dropped_step_leaves_no_sample() -> None:
    bench = Bench(FakeDevice(passed=10**6))
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


def test_samples_are_unknown_if_one_batch_does_not_tell() -> None:
    bench = Bench()
    bench.start(0)
    bench.timer.count_samples(torch.zeros(3))
    bench.timer.count_samples("text")
    bench.timer.count_samples(torch.zeros(3))
    bench.timer.on_step_end()
    assert bench.samples[0].samples is None


class Surface:
    def shape(self) -> str:
        return "round"


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage")
def test_a_batch_of_any_make_costs_its_samples_alone() -> None:
    bench = Bench()
    endless: list[Any] = []
    endless.append(endless)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for step, odd in enumerate((Surface(), nested, endless)):
        bench.start(step)
        bench.timer.count_samples(odd)
        bench.timer.on_step_end()
    assert [sample.samples for sample in bench.samples] == [None, None, None]


@dataclass
class Batch:
    name: str
    image: torch.Tensor


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(5, 2), 5),
        ([torch.zeros(4), torch.zeros(7)], 4),
        ({"meta": ["a", "b"], "x": {"y": (torch.zeros(3, 3),)}}, 3),
        (Batch("n", torch.zeros(6, 1)), 6),
        (torch.tensor(1.0), None),
        ((torch.tensor(1.0), torch.zeros(2)), 2),
        (None, None),
        ("text", None),
        (Batch, None),
        ([], None),
    ],
)
def test_batch_samples(batch: Any, samples: int | None) -> None:
    assert batch_samples(batch) == samples
