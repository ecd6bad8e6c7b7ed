from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy

from lightning_perf.callbacks.numerics.monitors import MonitorOptions, add_monitors
from lightning_perf.callbacks.precision.switch import PrecisionError
from lightning_perf.callbacks.steps.observers import Observers
from lightning_perf.callbacks.trainer_log import TrainerLog
from tests.callbacks.precision_training import make_net
from tests.callbacks.training import context


def monitors(module: Any, strategy: Any, *, world_size: int = 2, **options: int) -> Observers:
    trainer = SimpleNamespace(
        strategy=strategy.__new__(strategy),
        scaler=torch.amp.GradScaler("cpu"),
        optimizers=[],
        lr_scheduler_configs=[],
        loggers=(),
        log_every_n_steps=1,
        accumulate_grad_batches=1,
        global_step=0,
        world_size=world_size,
        global_rank=0,
        is_global_zero=True,
        precision_plugin=SimpleNamespace(precision="16-mixed"),
        callbacks=[],
        callback_metrics={},
    )
    chosen: dict[str, Any] = {"underflow_every_n_steps": 1, "locate_overflows": 0, "guard_steps": 0, **options}
    wanted = MonitorOptions(**chosen)
    fit = context()
    observers = Observers(fit.errors)
    add_monitors(observers, trainer, module, wanted, fit, TrainerLog(trainer, fit.errors))
    return observers


class Passes(torch.autograd.Function):
    """Counts the backward passes through it."""

    count = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        Passes.count += 1
        return gradient


def train(watched: Observers, module: Any, batches: int) -> tuple[int, dict[str, Any]]:
    """Train on batches that leave zeros as gradients. Return the backward passes that were made, and the results."""
    Passes.count = 0
    for number in range(batches):
        watched.on_batch_start(None, number)
        loss = Passes.apply(torch.stack([(parameter.double() * 0.0).sum() for parameter in module.parameters()]).sum())
        watched.on_before_backward(loss)
        loss.backward()
        watched.on_after_backward()
        watched.on_batch_end(None)
    results = watched.finish()
    return Passes.count, results


@pytest.mark.parametrize(("world_size", "passes"), [(1, 3), (2, 2)])
def test_a_further_backward_pass_is_made_by_a_process_that_is_alone(world_size: int, passes: int) -> None:
    """Rank 0 looks at the gradients. In a pass of its own it would wait for the others in `SyncBatchNorm` for ever."""
    module = make_net()
    watched = monitors(module, DDPStrategy, world_size=world_size)
    made, results = train(watched, module, 2)
    assert made == passes
    assert {layer.vanished for layer in results["underflow"].layers} == {False if world_size == 1 else None}


def test_a_shard_is_not_computed_with() -> None:
    module = make_net()
    watched = monitors(module, FSDPStrategy)
    _, results = train(watched, module, 2)
    assert results["loss_scale"] is not None
    assert "underflow" not in results
    with pytest.raises(PrecisionError, match=r"FSDPStrategy shards the model.*Leave out locate_overflows"):
        monitors(module, FSDPStrategy, locate_overflows=1)
