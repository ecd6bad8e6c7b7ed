"""The trainings whose overhead is measured: a hot loop, epochs of one batch, and four programs as users write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torchmetrics
from lightning.pytorch import callbacks, loggers
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.quiet import QUIET_TRAINER

__all__ = ["PROGRAMS", "REAL", "Program"]

Program = Callable[[int, Path], tuple[pl.LightningModule, dict[str, Any], dict[str, Any]]]
"""Takes the number of steps and a folder; returns the module, the data for `Trainer.fit`, and options of the Trainer."""


class Layers(pl.LightningModule):
    """Four linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(64, 64), nn.ReLU())))

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """A loss to have gradients of."""
        return self.layers(batch[0]).square().mean()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), 1e-3)


def hot_loop(steps: int, _: Path) -> tuple[pl.LightningModule, dict[str, Any], dict[str, Any]]:
    """Steps of less than a millisecond, without a logger. One batch, which is on the device from the start."""
    batch = torch.randn(32, 64, device="cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(TensorDataset(batch.expand(steps, -1, -1)), batch_size=None)
    return Layers(), {"train_dataloaders": loader}, QUIET_TRAINER


def one_batch_epochs(steps: int, _: Path) -> tuple[pl.LightningModule, dict[str, Any], dict[str, Any]]:
    """Epochs of one small batch."""
    loader = DataLoader(TensorDataset(torch.randn(32, 64)), 32)
    return Layers(), {"train_dataloaders": loader}, {**QUIET_TRAINER, "max_epochs": steps}


class Residual(nn.Module):
    """Two convolutions with normalization, and their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)),
        )

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Add the input."""
        return torch.relu(pictures + self.body(pictures))


class Pictures(pl.LightningModule):
    """A residual network with a head in a module of its own, and three metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), *(Residual(16) for _ in range(3)))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
        many = {"task": "multiclass", "num_classes": 10}
        kinds = (torchmetrics.Accuracy, torchmetrics.F1Score, torchmetrics.CalibrationError)
        self.metrics = torchmetrics.MetricCollection([kind(**many) for kind in kinds], prefix="train/")

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """Log the loss and the metrics."""
        pictures, labels = batch
        scores = self.head(self.backbone(pictures))
        self.metrics(scores, labels)
        self.log_dict(self.metrics, on_step=False, on_epoch=True)
        loss = nn.functional.cross_entropy(scores, labels)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> Any:
        """Momentum and a schedule by step."""
        optimizer = torch.optim.SGD(self.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10_000)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def pictures(steps: int, folder: Path) -> tuple[pl.LightningModule, dict[str, Any], dict[str, Any]]:
    """Classify pictures: TensorBoard, a checkpoint per epoch, the learning rate."""
    data = TensorDataset(torch.rand(steps * 4, 3, 32, 32), torch.randint(0, 10, (steps * 4,)))
    options = {
        "logger": loggers.TensorBoardLogger(folder),
        "callbacks": [callbacks.LearningRateMonitor("step"), callbacks.ModelCheckpoint(folder / "checkpoints")],
    }
    return Pictures(), {"train_dataloaders": DataLoader(data, 4, shuffle=True)}, options


class Language(pl.LightningModule):
    """A small transformer that predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, 64), nn.Embedding(32, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(64, 256)
        self.perplexity = torchmetrics.text.Perplexity(ignore_index=-100)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """Log the loss and the perplexity."""
        tokens = batch["input_ids"]
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.tokens(tokens) + self.places(places)
        scores = self.head(self.layers(hidden, src_key_padding_mask=batch["attention_mask"] == 0))
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten())
        self.log("loss", loss)
        self.log("perplexity", self.perplexity(scores, batch["labels"]), on_step=True)
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW with a warm-up."""
        optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 100))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def language(steps: int, folder: Path) -> tuple[pl.LightningModule, dict[str, Any], dict[str, Any]]:
    """Train a language model on dicts of tokens: clipping, a table of logs, the learning rate, weight averages."""
    ids = torch.randint(0, 256, (steps * 4, 32))
    data = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in ids]
    options = {
        "logger": loggers.CSVLogger(folder),
        "gradient_clip_val": 1.0,
        "callbacks": [callbacks.LearningRateMonitor(), callbacks.GradientAccumulationScheduler({0: 1})],
        "enable_checkpointing": False,
    }
    return Language(), {"train_dataloaders": DataLoader(data, 4, shuffle=True)}, options  # type: ignore[arg-type]


class Table(pl.LightningModule):
    """Embeddings of categories and deep residual blocks, for rows of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(20, 16) for _ in range(8))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 256))
            for _ in range(6)
        )
        self.enter, self.head = nn.Linear(8 * 16 + 32, 256), nn.Linear(256, 1)
        self.error = torchmetrics.MeanAbsoluteError()

    def forward(self, batch: Any) -> torch.Tensor:
        """Predict one number per row."""
        numbers, kinds, _ = batch
        columns = [each(kinds[:, place]) for place, each in enumerate(self.embeddings)]
        hidden = self.enter(torch.cat([numbers, *columns], 1))
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden)[:, 0]  # type: ignore[no-any-return]

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """Log the loss."""
        loss = nn.functional.mse_loss(self(batch), batch[2])
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        """Log the error."""
        self.error(self(batch), batch[2])
        self.log("error", self.error)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), 1e-3)


def table(steps: int, folder: Path) -> tuple[pl.LightningModule, dict[str, Any], dict[str, Any]]:
    """Regress rows of a table: epochs of 50 steps with validation, early stopping and the best checkpoint."""
    rows = 50 * 64
    data = TensorDataset(torch.randn(rows, 32), torch.randint(0, 20, (rows, 8)), torch.randn(rows))
    options = {
        "logger": loggers.TensorBoardLogger(folder),
        "callbacks": [
            callbacks.EarlyStopping("error", patience=1000),
            callbacks.ModelCheckpoint(folder / "checkpoints", monitor="error"),
            callbacks.Timer(),
        ],
        "max_epochs": -(-steps // 50),
        "limit_val_batches": 4,
    }
    loaders = {"train_dataloaders": DataLoader(data, 64, shuffle=True), "val_dataloaders": DataLoader(data, 64)}
    return Table(), loaders, options


class Adversarial(pl.LightningModule):
    """A generator and a discriminator with manual optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        wide = [nn.Linear(64, 256), nn.LeakyReLU(0.2), nn.Linear(256, 512), nn.LeakyReLU(0.2)]
        self.generator = nn.Sequential(*wide, nn.Linear(512, 784), nn.Tanh())
        self.discriminator = nn.Sequential(nn.Linear(784, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1))
        self.fooled = torchmetrics.MeanMetric()

    def training_step(self, batch: Any, _: int) -> None:
        """Step both optimizers."""
        real, steps = batch[0], self.optimizers()
        loss_of = nn.functional.binary_cross_entropy_with_logits
        made = self.generator(torch.randn(len(real), 64, device=real.device))
        ones, zeros = torch.ones(len(real), 1, device=real.device), torch.zeros(len(real), 1, device=real.device)
        for optimizer, loss in (
            (steps[0], loss_of(self.discriminator(made), ones)),  # type: ignore[index]
            (steps[1], loss_of(self.discriminator(real), ones) + loss_of(self.discriminator(made.detach()), zeros)),  # type: ignore[index]
        ):
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)
        self.fooled(loss.detach())
        self.log_dict({"discriminator": loss, "fooled": self.fooled}, prog_bar=True)

    def configure_optimizers(self) -> Any:
        """One optimizer for each."""
        return [torch.optim.Adam(each.parameters(), 2e-4) for each in (self.generator, self.discriminator)], []


def adversarial(steps: int, folder: Path) -> tuple[pl.LightningModule, dict[str, Any], dict[str, Any]]:
    """Train a GAN by manual optimization: two optimizers, a checkpoint every 100 steps, two loggers."""
    options = {
        "logger": [loggers.CSVLogger(folder), loggers.TensorBoardLogger(folder)],
        "callbacks": [
            callbacks.ModelCheckpoint(folder / "checkpoints", every_n_train_steps=200),
            callbacks.LearningRateMonitor(),
        ],
    }
    data = TensorDataset(torch.rand(steps * 64, 784))
    return Adversarial(), {"train_dataloaders": DataLoader(data, 64, shuffle=True)}, options


REAL: dict[str, Program] = {
    "pictures": pictures,
    "language": language,
    "table": table,
    "adversarial": adversarial,
}
PROGRAMS: dict[str, Program] = {"hot loop": hot_loop, "one batch per epoch": one_batch_epochs, **REAL}
