"""Hooks in which nobody has anything to do: the Trainer does not call them, and they are back after the fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import optimizer as torch_optimizer

from lightning_perf import PerfCallback, PrecisionCallback
from tests.callbacks.perf_training import quick
from tests.callbacks.training import PACKAGES, hooked, loader, make_module, make_trainer, manual_step

HOOKS = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")


@pytest.mark.parametrize("name", PACKAGES)
def test_only_recorded_steps_call_the_hooks_of_phases(tmp_path: Path, name: str) -> None:
    seen: list[tuple[list[str], bool]] = []

    def on_train_batch_end(self: Any, trainer: Any, *_: Any) -> None:
        called = [hook for hook in HOOKS if callable(getattr(perf, hook))]
        seen.append((called, bool(torch_optimizer._global_optimizer_pre_hooks)))

    watching = hooked(name=name, on_train_batch_end=on_train_batch_end)
    perf = quick(skip_first=4, warmup=0, active=2)
    make_trainer(tmp_path, perf, name, callbacks=[watching]).fit(make_module(name), loader(10))
    recorded = (list(HOOKS[1:]), True)
    assert seen[4:] == [recorded] * 2 + [([], False)] * 4
    assert all(callable(getattr(perf, hook)) for hook in HOOKS)


def test_optimizers_that_the_trainer_does_not_count_are_heard_in_every_step(tmp_path: Path) -> None:
    heard: list[bool] = []

    def training_step(self: Any, batch: Any, batch_idx: int) -> None:
        heard.append(bool(torch_optimizer._global_optimizer_pre_hooks))
        manual_step(self, batch, batch_idx)

    module = make_module(training_step=training_step, automatic_optimization=False)
    make_trainer(tmp_path, quick()).fit(module, loader(8))
    assert heard == [True] * 8


def test_a_hook_of_a_derived_class_is_called_in_every_step(tmp_path: Path) -> None:
    class Derived(PerfCallback):
        calls = 0

        def on_before_backward(self, trainer: Any, pl_module: Any, loss: torch.Tensor) -> None:
            self.calls += 1
            super().on_before_backward(trainer, pl_module, loss)

    derived = Derived(report="none", probe=False)
    make_trainer(tmp_path, derived).fit(make_module(), loader(12))
    assert derived.calls == 12


def test_a_precision_callback_whose_monitors_another_one_has_is_called_in_no_step(tmp_path: Path) -> None:
    precision = PrecisionCallback("bf16-mixed")
    called: list[bool] = []

    def on_train_batch_end(self: Any, outputs: Any, *_: Any) -> None:
        called.append(any(callable(getattr(precision, hook)) for hook in HOOKS))

    module = make_module(on_train_batch_end=on_train_batch_end)
    make_trainer(tmp_path, quick(), callbacks=[precision]).fit(module, loader(3))
    assert called == [False] * 3
    assert all(callable(getattr(precision, hook)) for hook in HOOKS)
