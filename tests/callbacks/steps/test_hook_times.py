"""The slowest hooks of callbacks and modules in a window, and how little is left of it outside of one."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.profilers import PassThroughProfiler, SimpleProfiler

from lightning_perf.callbacks.steps.hook_times import HookTimes
from lightning_perf.callbacks.steps.lightning_hooks import ProfilerHooks

SLOW = "[Callback]Slow{'monitor': 'loss'}.on_train_batch_end"
STEP = "[LightningModule]Net.optimizer_step"


class CSVLogger:
    pass


def hook_times() -> HookTimes:
    trainer: Any = SimpleNamespace(loggers=[CSVLogger()], log_every_n_steps=10)
    return HookTimes(trainer)


def hooked(times: HookTimes, profiler: Any = None) -> Any:
    profiler = profiler or PassThroughProfiler()
    ProfilerHooks(profiler, on_start=print, on_stop=print, times=times)
    return profiler


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A clock that stands still until a test moves it."""
    now = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    return now


def test_hooks_of_a_window_are_timed_by_class_and_name(clock: list[int]) -> None:
    times = hook_times()
    profiler = hooked(times)
    times.start()
    for _ in range(2):
        with profiler.profile("run_training_batch"), profiler.profile(SLOW):
            clock[0] += 30
        with profiler.profile("[Callback]PerfCallback.on_train_batch_end"):
            clock[0] += 99
        with profiler.profile("[LightningModule]Net.on_train_batch_start"):
            clock[0] += 1
    assert times.stop(2) == {
        "steps": 2,
        "loggers": ["CSVLogger"],
        "log_every_n_steps": 10,
        "hooks_ns": {"Slow.on_train_batch_end": 60, "Net.on_train_batch_start": 2},
    }


def test_outside_of_a_window_nothing_is_timed(clock: list[int]) -> None:
    times = hook_times()
    profiler = hooked(times)
    with profiler.profile(SLOW):
        clock[0] += 30
    times.start()
    assert times.stop(1)["hooks_ns"] == {}
    with profiler.profile(SLOW):
        clock[0] += 30
    times.start()
    assert times.stop(1)["hooks_ns"] == {}


def test_optimizer_step_counts_around_its_closure_and_the_optimizer(clock: list[int]) -> None:
    times = hook_times()
    profiler = hooked(times)
    times.start()
    with profiler.profile(STEP):
        clock[0] += 3  # before the closure
        with profiler.profile("[Strategy]SingleDeviceStrategy.training_step"):
            clock[0] += 100
        clock[0] += 100  # backward, and the optimizer itself
        times.on_optimizer_step_end()
        clock[0] += 20  # after it
    assert times.stop(1)["hooks_ns"] == {"Net.optimizer_step": 23}


def test_a_profiler_of_the_user_s_own_is_left_alone() -> None:
    times = hook_times()
    hooked(times, SimpleProfiler())
    times.start()
    assert times.stop(1)["hooks_ns"] is None
