"""The trainings of the overhead benchmark: a hot loop, epochs of one batch, and four programs as users write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torchmetrics
import torchvision
from lightning.pytorch import callbacks, loggers
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.text import Perplexity

from benchmarks.quiet import QUIET_TRAINER

__all__ = ["PROGRAMS", "REAL"]

Training = tuple[pl.LightningModule, dict[str, Any], dict[str, Any]]
"""A module, the data for `Trainer.fit`, and options of the Trainer."""


class Layers(pl.LightningModule):
    """Four linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(64, 64), nn.ReLU())))

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return self.layers(batch[0]).square().mean()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-3)


def hot_loop(steps: int, _: Path) -> Training:
    """Steps of less than a millisecond, without a logger. One batch, which is on the device from the start."""
    batch = torch.randn(32, 64, device="cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(TensorDataset(batch.expand(steps, -1, -1)), batch_size=None)
    return Layers(), {"train_dataloaders": loader}, QUIET_TRAINER


def one_batch_epochs(steps: int, _: Path) -> Training:
    """Epochs of one small batch."""
    loader = DataLoader(TensorDataset(torch.randn(32, 64)), 32)
    return Layers(), {"train_dataloaders": loader}, {**QUIET_TRAINER, "max_epochs": steps}


class Pictures(pl.LightningModule):
    """A residual network with a head in a module of its own, and three metrics."""

    def __init__(self) -> None:
        super().__init__()
        block = torchvision.models.resnet.BasicBlock
        self.backbone = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), *(block(16, 16) for _ in range(3)))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
        kinds: Any = (torchmetrics.Accuracy, torchmetrics.F1Score, torchmetrics.CalibrationError)
        self.metrics = torchmetrics.MetricCollection([kind("multiclass", num_classes=10) for kind in kinds])

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        scores = self.head(self.backbone(batch[0]))
        self.metrics(scores, batch[1])
        self.log_dict(self.metrics, on_step=False, on_epoch=True)
        loss = nn.functional.cross_entropy(scores, batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10_000)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def pictures(steps: int, folder: Path) -> Training:
    """Classify pictures: three metrics, TensorBoard, a checkpoint per epoch, the learning rate of each step."""
    data = TensorDataset(torch.rand(steps * 4, 3, 32, 32), torch.randint(0, 10, (steps * 4,)))
    own = [callbacks.LearningRateMonitor("step"), callbacks.ModelCheckpoint(folder / "checkpoints")]
    options = {"logger": loggers.TensorBoardLogger(folder), "callbacks": own}
    return Pictures(), {"train_dataloaders": DataLoader(data, 4, shuffle=True)}, options


class Language(pl.LightningModule):
    """A small transformer that predicts tokens."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.tokens, self.layers = nn.Embedding(256, 64), nn.TransformerEncoder(layer, 2)
        self.head, self.perplexity = nn.Linear(64, 256), Perplexity(ignore_index=-100)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        scores = self.head(self.layers(self.tokens(batch["input_ids"])))
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten())
        self.log("loss", loss)
        self.log("perplexity", self.perplexity(scores, batch["labels"]), on_step=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)


def language(steps: int, folder: Path) -> Training:
    """Train a language model on dicts of tokens: a metric, clipping, a table of logs, the learning rate."""
    rows = torch.randint(0, 256, (steps * 4, 32))
    data: Any = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in rows]
    own = [callbacks.LearningRateMonitor(), callbacks.GradientAccumulationScheduler({0: 1})]
    options = {"logger": loggers.CSVLogger(folder), "callbacks": own, "gradient_clip_val": 1.0}
    return Language(), {"train_dataloaders": DataLoader(data, 4)}, {**options, "enable_checkpointing": False}


class Table(pl.LightningModule):
    """Embeddings of categories and residual blocks, for rows of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(20, 16) for _ in range(8))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)) for _ in range(6)
        )
        self.head, self.error = nn.Linear(128, 1), torchmetrics.MeanAbsoluteError()

    def forward(self, kinds: torch.Tensor) -> torch.Tensor:
        hidden = torch.cat([each(kinds[:, place]) for place, each in enumerate(self.embeddings)], 1)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden)[:, 0]  # type: ignore[no-any-return]

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss = nn.functional.mse_loss(self(batch[0]), batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.error(self(batch[0]), batch[1])
        self.log("error", self.error)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-3)


def table(steps: int, folder: Path) -> Training:
    """Regress rows of a table: epochs of 50 steps with validation, early stopping and the best checkpoint."""
    data = TensorDataset(torch.randint(0, 20, (50 * 64, 8)), torch.randn(50 * 64))
    own = [
        callbacks.EarlyStopping("error", patience=1000),
        callbacks.ModelCheckpoint(folder / "checkpoints", monitor="error"),
        callbacks.Timer(),
    ]
    options = {"logger": loggers.TensorBoardLogger(folder), "callbacks": own, "limit_val_batches": 4}
    loaders = {"train_dataloaders": DataLoader(data, 64, shuffle=True), "val_dataloaders": DataLoader(data, 64)}
    return Table(), loaders, {**options, "max_epochs": steps // 50}


class Adversarial(pl.LightningModule):
    """A generator and a discriminator, by manual optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(64, 512), nn.LeakyReLU(0.2), nn.Linear(512, 784), nn.Tanh())
        self.discriminator = nn.Sequential(nn.Linear(784, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1))
        self.fooled = torchmetrics.MeanMetric()

    def training_step(self, batch: Any, _: int) -> None:
        real = batch[0]
        optimizers: Any = self.optimizers()
        made = self.generator(torch.randn(len(real), 64, device=real.device))
        losses = (
            lambda: nn.functional.softplus(-self.discriminator(made)).mean(),
            lambda: nn.functional.softplus(self.discriminator(made.detach()) - self.discriminator(real)).mean(),
        )
        for optimizer, loss in zip(optimizers, losses, strict=True):
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            value = loss()  # type: ignore[no-untyped-call]
            self.manual_backward(value)
            optimizer.step()
            self.untoggle_optimizer(optimizer)
        self.fooled(value.detach())
        self.log_dict({"discriminator": value, "fooled": self.fooled}, prog_bar=True)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(each.parameters(), 2e-4) for each in (self.generator, self.discriminator)], []


def adversarial(steps: int, folder: Path) -> Training:
    """Train a GAN by manual optimization: two optimizers, two loggers, checkpoints by step."""
    own = [callbacks.ModelCheckpoint(folder / "checkpoints", every_n_train_steps=200), callbacks.LearningRateMonitor()]
    options = {"logger": [loggers.CSVLogger(folder), loggers.TensorBoardLogger(folder)], "callbacks": own}
    data = TensorDataset(torch.rand(steps * 64, 784))
    return Adversarial(), {"train_dataloaders": DataLoader(data, 64)}, options


REAL: dict[str, Callable[[int, Path], Training]] = {
    "pictures": pictures,
    "language": language,
    "table": table,
    "adversarial": adversarial,
}
PROGRAMS = {"hot loop": hot_loop, "one batch per epoch": one_batch_epochs, **REAL}
"""Trainings by name. Each takes the number of steps, and a folder for its files."""
