"""The hooks into a Trainer's profiler: they hear, and leave nothing behind."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.profilers import PassThroughProfiler, SimpleProfiler

from lightning_perf.callbacks.steps.fit_state import Signal
from lightning_perf.callbacks.steps.lightning_hooks import OptimizerHooks, ProfilerHooks, read_signal
from tests.callbacks.training import PACKAGES, loader, make_module, make_trainer, package

FORWARD = "[Strategy]DDPStrategy.training_step"


def hook(profiler: object, heard: list[object]) -> ProfilerHooks:
    return ProfilerHooks(
        profiler,
        on_start=lambda signal: heard.append(("start", signal)),
        on_stop=lambda signal: heard.append(("stop", signal)),
    )


def test_hears_signals_and_nothing_else() -> None:
    profiler: Any = PassThroughProfiler()
    heard: list[object] = []
    hook(profiler, heard)
    with profiler.profile("run_training_batch"), profiler.profile(FORWARD):
        heard.append("inside")
    assert heard == [("start", Signal.FORWARD), "inside", ("stop", Signal.FORWARD)]


def test_the_profiler_does_its_own_work() -> None:
    profiler = SimpleProfiler()
    hooks = hook(profiler, [])
    with profiler.profile(FORWARD):
        pass
    hooks.remove()
    assert len(profiler.recorded_durations[FORWARD]) == 1


def test_removal_leaves_the_instance_as_it_was() -> None:
    profiler: Any = PassThroughProfiler()
    heard: list[object] = []
    before = dict(vars(profiler))
    hooks = hook(profiler, heard)
    hooks.remove()
    hooks.remove()
    assert vars(profiler) == before
    profiler.start(FORWARD)
    assert heard == []


def test_an_attribute_of_the_instance_comes_back() -> None:
    profiler: Any = PassThroughProfiler()
    calls: list[str] = []
    profiler.start = calls.append
    hooks = hook(profiler, [])
    profiler.start("a")
    hooks.remove()
    profiler.start("b")
    assert calls == ["a", "b"]
    assert "stop" not in vars(profiler)


def test_hooks_in_any_order_of_removal() -> None:
    profiler: Any = PassThroughProfiler()
    first_heard: list[object] = []
    second_heard: list[object] = []
    before = dict(vars(profiler))
    first = hook(profiler, first_heard)
    second = hook(profiler, second_heard)
    first.remove()
    profiler.start(FORWARD)
    assert first_heard == []
    assert second_heard == [("start", Signal.FORWARD)]
    second.remove()
    profiler.start(FORWARD)
    assert len(second_heard) == 1
    assert vars(profiler) == before


def test_stop_is_heard_when_the_action_fails() -> None:
    profiler: Any = PassThroughProfiler()
    heard: list[object] = []
    hook(profiler, heard)
    with pytest.raises(ZeroDivisionError), profiler.profile(FORWARD):
        raise ZeroDivisionError
    assert heard[-1] == ("stop", Signal.FORWARD)


def test_steps_of_optimizers_are_heard_around_the_closure_until_removal() -> None:
    heard: list[str] = []
    hooks = OptimizerHooks(on_start=lambda: heard.append("start"), on_end=lambda: heard.append("end"))
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.1)
    optimizer.step(lambda: heard.append("closure"))
    assert heard == ["start", "closure", "end"]
    hooks.remove()
    hooks.remove()
    optimizer.step(lambda: None)
    assert len(heard) == 3


def test_optimizers_of_another_thread_are_not_heard() -> None:
    heard: list[str] = []
    hooks = OptimizerHooks(on_start=lambda: heard.append("start"), on_end=lambda: heard.append("end"))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], 0.1)
    thread = threading.Thread(target=optimizer.step)
    thread.start()
    thread.join()
    assert heard == []
    optimizer.step()
    assert heard == ["start", "end"]
    hooks.remove()


def test_a_profiler_that_does_nothing_is_not_called_for_actions_without_a_signal() -> None:
    profiler: Any = PassThroughProfiler()
    heard: list[Any] = []
    hooks = hook(profiler, heard)
    for _ in range(2):
        with profiler.profile("run_training_batch") as name:
            assert name == "run_training_batch"
        with profiler.profile(FORWARD) as name:
            assert name == FORWARD
    assert [signal for _, signal in heard] == [Signal.FORWARD] * 4
    hooks.remove()
    assert "profile" not in vars(profiler)


class Counting(PassThroughProfiler):
    """Counts actions, with the default profiler for a base."""

    def __init__(self) -> None:
        super().__init__()
        self.actions: list[str] = []

    def start(self, action_name: str) -> None:
        self.actions.append(action_name)


def test_a_profiler_that_does_something_hears_of_all_actions() -> None:
    profiler = Counting()
    hook(profiler, [])
    for name in ("run_training_batch", FORWARD, "run_training_batch"):
        with profiler.profile(name):
            pass
    assert profiler.actions == ["run_training_batch", FORWARD, "run_training_batch"]


def test_a_default_profiler_with_methods_of_its_own_hears_of_all_actions() -> None:
    profiler: Any = PassThroughProfiler()
    calls: list[str] = []
    profiler.start = calls.append
    hook(profiler, [])
    for _ in range(2):
        with profiler.profile("run_training_batch"):
            pass
    assert calls == ["run_training_batch"] * 2


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

    def manual(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()

    make_trainer(tmp_path, None, name, profiler=Listening()).fit(
        make_module(name, training_step=manual, automatic_optimization=False), loader(1)
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
