"""The Trainer's action names, as real Trainers say them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_perf.callbacks.steps.lightning_hooks import Signal, read_signal
from tests.callbacks.training import PACKAGES, loader, make_module, make_trainer, package


@pytest.mark.parametrize("name", PACKAGES)
def test_every_signal_is_heard_from_a_real_trainer(tmp_path: Path, name: str) -> None:
    profilers = package(f"{name}.profilers")
    heard: list[Signal] = []

    class Listening(profilers.PassThroughProfiler):
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
