from __future__ import annotations

import pytest

from lightning_perf.callbacks.recording.window_notes import LAST_STEPS, PageFaultCounter
from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.run_files.steps import WARMUP_STEPS


class Bench:
    def __init__(self) -> None:
        self.faults: int | None = 1_000
        self.state = FitState(step=WARMUP_STEPS)
        self.counter = PageFaultCounter(self.state, count=lambda: self.faults)

    def begin(self) -> None:
        self.counter.on_step_start()

    def take(self, faults: int) -> None:
        assert self.faults is not None
        self.faults += faults

    def step(self, faults: int) -> None:
        self.begin()
        self.take(faults)
        self.counter.on_step_end()
        self.take(10_000)  # between two steps


def test_the_median_of_the_last_steps() -> None:
    bench = Bench()
    for faults in (90_000, 7):
        bench.step(faults)
    assert bench.counter.median_per_step() is None
    bench.step(9)
    assert bench.counter.median_per_step() == 9
    for _ in range(LAST_STEPS):
        bench.step(3)
    assert bench.counter.median_per_step() == 3


@pytest.mark.parametrize(
    ("first", "faults", "median"),
    [
        # Measured: 11,570 faults were named, of which the steps after the compilation had one.
        (0, [301_000, 48_000, 11_570, 11_570, 11_570, 1, 1, 1], 1),
        (0, [301_000, 48_000, 11_570, 11_570, 1, 1], None),
        (WARMUP_STEPS, [11_570, 11_570, 11_570, 11_570, 2, 1, 1], 1),
    ],
    ids=["compiled", "recorded before the warm-up ended", "a warm-up longer than usual"],
)
def test_the_faults_of_a_warm_up_are_not_named(first: int, faults: list[int], median: float | None) -> None:
    bench = Bench()
    for bench.state.step, each in enumerate(faults, first):
        bench.step(each)
    assert bench.counter.median_per_step() == median


def test_steps_that_are_not_whole_do_not_count() -> None:
    bench = Bench()
    for faults in (5, 6, 7):
        bench.step(faults)
        bench.begin()
        bench.take(500)
        bench.counter.on_step_cut()
        bench.counter.on_step_end()
    assert bench.counter.median_per_step() == 6


def test_profiled_steps_do_not_count() -> None:
    bench = Bench()
    for faults in (5, 6, 7):
        bench.step(faults)
        bench.state.profiling = True
        bench.step(500)
        bench.state.profiling = False
    assert bench.counter.median_per_step() == 6


def test_a_system_that_does_not_count() -> None:
    bench = Bench()
    bench.faults = None
    for _ in range(5):
        bench.begin()
        bench.counter.on_step_end()
    assert bench.counter.median_per_step() is None
