"""What the watch over the loss costs in a step on a device, and what it holds. No device is needed."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_perf import PrecisionCallback
from lightning_perf.callbacks.host_copy import GROUP, ScalarCopies
from lightning_perf.callbacks.numerics.bad_run import LossWatch
from lightning_perf.callbacks.numerics.loss_scale import Unscaled
from lightning_perf.callbacks.numerics.replay import KeptBatch, Replay
from lightning_perf.callbacks.steps.fit_state import FitState
from tests.callbacks.precision_training import Recipe, fit, make_net
from tests.support.operators import Operators


def replay(device: str) -> Replay:
    trainer = SimpleNamespace(
        strategy=SimpleNamespace(root_device=torch.device(device)),
        global_step=0,
        scaler=None,
        accumulate_grad_batches=1,
    )
    return Replay(trainer, SimpleNamespace(automatic_optimization=True), FitState())


def test_a_step_on_a_device_costs_one_copy_and_no_random_state(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = LossWatch(replay("cuda"), "loss", Unscaled())
    monkeypatch.setattr(torch, "get_rng_state", lambda: pytest.fail("the random state was read"))
    seen: list[str] = []
    with Operators(lambda name, _: seen.append(name)):
        for number in range(3):
            watch.on_batch_start([torch.ones(2)], number)
            watch.on_before_backward(torch.tensor(1.0))
            watch.on_after_backward()
            watch.on_batch_end(None)
    computing = [name for name in seen if name not in ("ones", "empty", "lift_fresh", "detach", "view", "select")]
    assert computing == 3 * ["copy_"]


def test_after_a_bad_loss_the_batches_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda _: torch.get_rng_state())
    watch = LossWatch(replay("cuda"), "loss", Unscaled())
    diagnosed: list[int] = []
    number = 0
    monkeypatch.setattr(watch, "_diagnose", lambda _: diagnosed.append(number))
    losses = (1.0, math.nan, 1.0, math.inf, 1.0)
    for number, loss in enumerate(losses):
        watch.on_batch_start([torch.ones(2)], number)
        watch.on_before_backward(torch.tensor(loss))
        watch.on_after_backward()
        watch.on_batch_end(None)
    assert diagnosed == [3]  # the batch of the first one was not kept


@pytest.mark.usefixtures("fp16_on_cpu")
def test_no_batch_is_held_after_its_step(tmp_path: Path) -> None:
    module = make_net(Recipe())
    held: list[int] = []
    # Lightning calls the module's hook after the callbacks', and validation after both.
    module.on_train_batch_end = lambda *_: held.append(sum(type(one) is KeptBatch for one in gc.get_objects()))
    fit(tmp_path, PrecisionCallback("16-mixed", locate_overflows=1, diagnose="loss"), module, max_steps=3)
    assert held == [0, 0, 0]


class Event:
    """An event of a device that has reached it once it is told so."""

    made: list[Event]

    def __init__(self) -> None:
        self.reached = False
        self.made.append(self)

    def record(self) -> None:
        """The device has it in its queue."""

    def query(self) -> bool:
        """Whether the device has reached it."""
        return self.reached

    def synchronize(self) -> None:
        """Wait for the device."""
        self.reached = True


def test_the_copies_of_several_steps_share_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    Event.made = []
    empty = torch.empty
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch, "empty", lambda size, **options: empty(size, dtype=options["dtype"]))

    def scalar(value: float) -> Any:
        on_device = torch.tensor([value])
        return SimpleNamespace(device=SimpleNamespace(type="cuda"), dtype=torch.float32, detach=lambda: on_device)

    copies = ScalarCopies()
    for step in range(GROUP + 2):
        copies.add(step, scalar(step / 2))
        assert list(copies.arrived()) == []
    assert len(Event.made) == 1
    Event.made[0].reached = True
    assert list(copies.arrived()) == [(step, step / 2) for step in range(GROUP)]
    assert list(copies.arrived()) == []
    assert list(copies.arrived(wait=True)) == [(GROUP, GROUP / 2), (GROUP + 1, (GROUP + 1) / 2)]
