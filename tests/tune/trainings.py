"""Tiny trainings whose speeds and faults are planted, so that what a tuning finds is certain.

Trials run in processes of their own, which import this file: what a lever does is planted here, in the training.
"""

from __future__ import annotations

import time

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset


def lines(lever, training):
    """What a lever tells its user to write."""
    return tuple(map(str, lever.settings(training)))


SLOW_S = 0.02
"""Long beside a step of a millisecond or two, even on a busy machine."""


class Pictures(Dataset):
    """Pictures that tell their own number."""

    def __init__(self, count: int = 64) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2, 4, 4), index / self.count), index % 2


class Stream(IterableDataset):
    def __iter__(self):
        pictures = Pictures()
        return (pictures[index] for index in range(len(pictures)))


class Data(pl.LightningDataModule):
    """Knows its data only once it is set up."""

    def __init__(self, **settings) -> None:
        super().__init__()
        self.settings = {"batch_size": 4, "shuffle": True} | settings

    def setup(self, stage: str) -> None:
        self.pictures = Pictures()

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.pictures, **self.settings)


class Tiny(pl.LightningModule):
    """A convolution that trains on little pictures."""

    def __init__(self, optimizer: str = "SGD") -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 2, 3)
        self.optimizer = optimizer

    def forward(self, pictures):
        return self.layer(pictures).mean((2, 3))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return getattr(torch.optim, self.optimizer)(self.parameters(), lr=0.01)


class Flagged(Tiny):
    def on_train_start(self):
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.benchmark


class WithOwnLoader(Tiny):
    def train_dataloader(self) -> DataLoader:
        return DataLoader(Pictures(), batch_size=4, shuffle=True)


class Planted(Tiny):
    """Sleeps if channels-last."""

    def training_step(self, batch, batch_idx):
        if self.layer.weight.is_contiguous(memory_format=torch.channels_last):
            time.sleep(SLOW_S)
        return super().training_step(batch, batch_idx)


TRAINER = {"accelerator": "cpu", "devices": 1}


def planted():
    return Planted(), DataLoader(Pictures(), batch_size=4, shuffle=True), TRAINER


def tiny():
    return Tiny(), Data(), TRAINER


def on_two_devices():
    return Tiny(), Data(), {"accelerator": "cpu", "devices": 2}


def failing():
    raise RuntimeError("no such file: weights.pt\nsecond line")


class Hanging(Tiny):
    """Sleeps for ever in its sixth step, with workers at work."""

    def on_train_batch_start(self, batch, batch_idx):
        if batch_idx == 5:
            time.sleep(1000)


def hanging():
    return Hanging(), DataLoader(Pictures(), batch_size=4, num_workers=1), TRAINER
