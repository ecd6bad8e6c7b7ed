"""Tiny trainings in mixed precision, through the callback and through Lightning's own plugin."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf.callbacks.precision_callback import Precision
from tests.callbacks.training import PACKAGES, hooked, make_trainer, package

MODES: tuple[Precision, ...] = ("16-mixed", "bf16-mixed")


def batches(size: int = 48, batch_size: int = 8) -> DataLoader:
    draw = torch.Generator().manual_seed(1)
    features = torch.randn(size, 8, generator=draw)
    labels = torch.randint(0, 4, (size,), generator=draw)
    return DataLoader(TensorDataset(features, labels), batch_size)


@dataclass(frozen=True)
class Recipe:
    """What a training is made of; the defaults are the plain case."""

    manual: bool = False
    optimizers: int = 1
    compiled: bool = False
    scheduler: bool = False
    fused: bool = False
    overflow_at: int | None = None
    """Number of the batch whose output is multiplied up until fp16 gradients overflow."""


def make_net(recipe: Recipe = Recipe(), name: str = PACKAGES[0]) -> Any:
    base = package(name).LightningModule

    class Net(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.automatic_optimization = not recipe.manual
            self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.1))
            self.fc = nn.Linear(16, 4)
            self.losses: list[float] = []
            if recipe.compiled:
                # All of these nets share one code object: past its limit of recompilations torch would run it eagerly.
                torch.compiler.reset()
                self.__dict__["forward"] = torch.compile(self.forward, backend="aot_eager")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.body(x))

        def loss(self, batch: Any) -> torch.Tensor:
            output = self(batch[0])
            if self.trainer.training and self.trainer.fit_loop.total_batch_idx == recipe.overflow_at:
                output = output * 60_000
            return nn.functional.cross_entropy(output, batch[1])

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if not recipe.manual:
                return self.loss(batch)
            for optimizer in [self.optimizers()] if recipe.optimizers == 1 else self.optimizers():
                loss = self.loss(batch)
                self.losses.append(float(loss.detach()))
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            if recipe.scheduler:
                self.lr_schedulers().step()
            return None

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if not recipe.manual:
                self.losses.append(float(outputs["loss"]))

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.output_dtype = self(batch[0]).dtype

        test_step = validation_step

        def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self(batch[0])

        def configure_optimizers(self) -> Any:
            if recipe.optimizers == 2:
                return [torch.optim.SGD(self.body.parameters(), 0.1), torch.optim.SGD(self.fc.parameters(), 0.1)]
            optimizer = torch.optim.AdamW(self.parameters(), 0.01, fused=recipe.fused)
            if recipe.scheduler:
                schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
                return [optimizer], [{"scheduler": schedule, "interval": "step"}]
            return optimizer

    return Net()


def with_factor(module: Any, factor: Callable[[], float]) -> Any:
    """Multiply the losses of a module."""
    plain = module.loss
    module.loss = lambda batch: plain(batch) * factor()
    return module


@dataclass(frozen=True)
class Outcome:
    losses: list[float]
    weights: list[torch.Tensor]
    scaler: dict[str, Any] | None
    trainer: Any
    module: Any


def fit(tmp_path: Path, callback: Any, module: Any, *, name: str = PACKAGES[0], **options: Any) -> Outcome:
    checkpoint = options.pop("ckpt_path", None)
    trainer = make_trainer(tmp_path, callback, name, **{"max_steps": 6, "max_epochs": -1, **options})
    scaler: list[dict[str, Any] | None] = []
    trainer.callbacks.append(hooked(name=name, on_train_end=lambda *_: scaler.append(_state(trainer))))
    with warnings.catch_warnings():
        # torch's own, when the first step overflows and Lightning steps the schedule all the same.
        warnings.filterwarnings("ignore", ".*lr_scheduler.step.*before.*optimizer.step")
        warnings.filterwarnings("ignore", ".*checkpoint that ended before the epoch ended")
        trainer.fit(module, batches(), ckpt_path=checkpoint, weights_only=False if checkpoint else None)
    return Outcome(module.losses, [p.detach().clone() for p in module.parameters()], scaler[0], trainer, module)


def _state(trainer: Any) -> dict[str, Any] | None:
    return trainer.scaler.state_dict() if trainer.scaler is not None else None


def stock_options(mode: str, name: str = PACKAGES[0], **scaler: Any) -> dict[str, Any]:
    """What makes a Trainer train in a mixed precision by Lightning's own means, fp16 on the CPU included."""
    if mode == "bf16-mixed":
        return {"precision": mode}
    plugins = package(f"{name}.plugins")
    return {"plugins": [plugins.MixedPrecision(mode, "cpu", torch.amp.GradScaler("cpu", **scaler))]}


def same(first: Outcome, second: Outcome) -> bool:
    return (
        first.losses == second.losses
        and first.scaler == second.scaler
        and all(torch.equal(a, b) for a, b in zip(first.weights, second.weights, strict=True))
    )
