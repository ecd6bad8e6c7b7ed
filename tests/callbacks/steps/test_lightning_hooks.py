"""The hooks into a Trainer's profiler: they hear, and leave nothing behind."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.profilers import PassThroughProfiler, SimpleProfiler

from lightning_perf.callbacks.steps.fit_state import Signal
from lightning_perf.callbacks.steps.lightning_hooks import HookTimes, OptimizerHooks, ProfilerHooks, read_signal
from tests.callbacks.training import PACKAGES, loader, make_module, make_trainer, manual_step, package

FORWARD = "[Strategy]DDPStrategy.training_step"


def hook(profiler: object, heard: list[object]) -> ProfilerHooks:
    hooks = ProfilerHooks(profiler)
    hooks.listen(lambda signal: heard.append(("start", signal)), lambda signal: heard.append(("stop", signal)))
    hooks.follow_phases(True)
    return hooks


def test_signals_are_heard_and_nothing_else_also_around_an_action_that_fails() -> None:
    profiler: Any = PassThroughProfiler()
    heard: list[object] = []
    hooks = hook(profiler, heard)
    for _ in range(2):
        with profiler.profile("run_training_batch") as name, profiler.profile(FORWARD):
            assert name == "run_training_batch"
            heard.append("inside")
    assert heard == [("start", Signal.FORWARD), "inside", ("stop", Signal.FORWARD)] * 2
    with pytest.raises(ZeroDivisionError), profiler.profile(FORWARD):
        raise ZeroDivisionError
    assert heard[-1] == ("stop", Signal.FORWARD)
    hooks.stop_listening()
    with profiler.profile(FORWARD):
        assert len(heard) == 8


def test_removal_leaves_the_instance_as_it_was_in_any_order() -> None:
    profiler: Any = PassThroughProfiler()
    calls: list[str] = []
    profiler.start = calls.append
    heard: tuple[list[object], list[object]] = ([], [])
    before = dict(vars(profiler))
    first, second = (hook(profiler, each) for each in heard)
    profiler.start("a")
    first.remove()
    first.remove()
    profiler.start(FORWARD)
    second.remove()
    profiler.start(FORWARD)
    assert heard == ([], [("start", Signal.FORWARD)])
    assert calls == ["a", FORWARD, FORWARD], "its own method"
    assert vars(profiler) == before


class Counting(PassThroughProfiler):
    """Counts actions, with the default profiler for a base."""

    def __init__(self) -> None:
        super().__init__()
        self.actions: list[str] = []

    def start(self, action_name: str) -> None:
        self.actions.append(action_name)


@pytest.mark.parametrize("kind", ["subclass", "own method", "simple"])
def test_a_profiler_that_does_something_hears_of_all_actions(kind: str) -> None:
    actions: list[str] = []
    profiler: Any = {"subclass": Counting, "own method": PassThroughProfiler, "simple": SimpleProfiler}[kind]()
    if kind == "own method":
        profiler.start = actions.append
    hooks = hook(profiler, [])
    for name in ("run_training_batch", FORWARD, "run_training_batch"):
        with profiler.profile(name):
            pass
    hooks.remove()
    actions = profiler.actions if kind == "subclass" else actions
    if kind == "simple":
        actions = [name for name, times in profiler.recorded_durations.items() for _ in times]
    assert sorted(actions) == sorted(["run_training_batch", FORWARD, "run_training_batch"])


SLOW = "[Callback]Slow{'monitor': 'loss'}.on_train_batch_end"


class Timed:
    """The times of hooks on a clock that stands still until a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, profiler: Any) -> None:
        self.now_ns = 0
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.now_ns)
        trainer: Any = SimpleNamespace(loggers=[Counting()], log_every_n_steps=10)
        self.times, self.profiler, self.hooks = HookTimes(trainer), profiler, ProfilerHooks(profiler)
        self.hooks.listen(lambda signal: None, lambda signal: None, self.times)

    def start(self) -> None:
        self.times.start()
        self.hooks.follow_phases(True)

    def action(self, name: str, ns: int) -> None:
        with self.profiler.profile(name):
            self.now_ns += ns


def test_hooks_of_a_window_are_timed_by_class_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Timed(monkeypatch, PassThroughProfiler())
    run.action(SLOW, 30)  # before the window
    run.start()
    for _ in range(2):
        with run.profiler.profile("run_training_batch"):
            run.action(SLOW, 30)
        run.action("[Callback]PerfCallback.on_train_batch_end", 99)
        run.action("[LightningModule]Net.on_train_batch_start", 1)
    with run.profiler.profile("[LightningModule]Net.optimizer_step"):
        run.now_ns += 3  # before the closure
        run.action("[Strategy]SingleDeviceStrategy.training_step", 100)
        run.now_ns += 100  # backward, and the optimizer itself
        run.times.on_optimizer_step_end()
        run.now_ns += 20  # after it
    assert run.times.stop(2) == {
        "steps": 2,
        "loggers": ["Counting"],
        "log_every_n_steps": 10,
        "hooks_ns": {"Slow.on_train_batch_end": 60, "Net.optimizer_step": 23, "Net.on_train_batch_start": 2},
        "bar_values": None,
    }
    run.hooks.follow_phases(False)
    run.action(SLOW, 30)
    run.start()
    assert run.times.stop(1)["hooks_ns"] == {}


def test_hooks_are_not_timed_under_a_profiler_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Timed(monkeypatch, SimpleProfiler())
    run.start()
    assert run.times.stop(1)["hooks_ns"] is None


def test_steps_of_optimizers_are_heard_around_the_closure_in_their_own_thread_until_removal() -> None:
    heard: list[str] = []
    hooks = OptimizerHooks(on_start=lambda: heard.append("start"), on_end=lambda: heard.append("end"))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], 0.1)
    thread = threading.Thread(target=optimizer.step)
    thread.start()
    thread.join()
    optimizer.step(lambda: heard.append("closure"))
    hooks.remove()
    hooks.remove()
    optimizer.step(lambda: None)
    assert heard == ["start", "closure", "end"]


def test_hooks_that_are_removed_from_inside_leave_the_optimizer_and_other_hooks_working() -> None:
    heard: list[str] = []
    first = OptimizerHooks(on_start=lambda: first.remove(), on_end=lambda: heard.append("not removed"))
    second = OptimizerHooks(on_start=lambda: heard.append("start"), on_end=lambda: heard.append("end"))
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(2):
        weight.grad = torch.ones(2)
        optimizer.step()
    first.remove()
    second.remove()
    assert torch.allclose(weight, torch.full((2,), 0.8))
    assert heard == ["start", "end"] * 2


@pytest.mark.parametrize("name", PACKAGES)
def test_every_signal_is_heard_from_a_real_trainer(tmp_path: Path, name: str) -> None:
    base: Any = package(f"{name}.profilers").PassThroughProfiler
    heard: list[Signal] = []

    class Listening(base):
        def start(self, action_name: str) -> None:
            if (signal := read_signal(action_name)) is not None:
                heard.append(signal)

    trainer = make_trainer(tmp_path, None, name, profiler=Listening(), enable_checkpointing=True)
    trainer.fit(make_module(name), loader(2), loader(1))

    make_trainer(tmp_path, None, name, profiler=Listening()).fit(
        make_module(name, training_step=manual_step, automatic_optimization=False), loader(1)
    )
    assert set(heard) == set(Signal)


@pytest.mark.parametrize(
    "action",
    [
        "run_training_batch",
        "[Strategy]SingleDeviceStrategy.validation_step",
        "[Strategy]SingleDeviceStrategy.backward",
        "[LightningModule]Net.on_train_batch_start",
        "[Callback]ModelCheckpoint{'monitor': None}.on_train_batch_end",
        "training_step",
        "",
    ],
)
def test_other_actions_mean_nothing(action: str) -> None:
    assert read_signal(action) is None
