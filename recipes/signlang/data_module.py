"""Batches of decoded pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from recipes.signlang.image_set import ImageSet
from recipes.signlang.machine import usable_cores
from recipes.signlang.split import Split

__all__ = ["SignData", "default_workers"]

Batch = tuple[Tensor, Tensor]


class _Rows(Dataset[Batch]):
    """Some rows of an image set; a batch is one indexing of one array, not a loop over pictures."""

    def __init__(self, pictures: Tensor, labels: Tensor, rows: Tensor) -> None:
        self._pictures, self._labels, self._rows = pictures, labels, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Batch:
        pictures, labels = self.__getitems__([index])
        return pictures[0], labels[0]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        rows = self._rows[torch.as_tensor(indices)]
        return self._pictures[rows].unsqueeze(1), self._labels[rows]


def _as_is(batch: Any) -> Any:
    return batch


def default_workers() -> int:
    """Worker processes that help when pictures are decoded already.

    Taking a batch from memory costs microseconds, so two workers keep up with any device; with fewer than three cores
    they would only take time from the training itself.
    """
    return 2 if usable_cores() > 2 else 0


class SignData(LightningDataModule):
    """Training and held-out batches: ``(n, 1, size, size)`` bytes and ``(n,)`` labels.

    Args:
        images: The data set.
        split: Which pictures train.
        batch_size: Pictures a batch.
        workers: Worker processes.
    """

    def __init__(self, images: ImageSet, split: Split, batch_size: int, workers: int) -> None:
        super().__init__()
        self._pictures = torch.from_numpy(images.pictures)
        self._labels = torch.from_numpy(images.labels)
        self._split = split
        self._batch_size = batch_size
        self._workers = workers

    def train_dataloader(self) -> DataLoader[Batch]:
        """Shuffled; the last, smaller batch is left out where there are others, as batch norm needs many pictures."""
        training = torch.from_numpy(self._split.training)
        return self._loader(training, shuffle=True, drop_last=len(training) > self._batch_size)

    def val_dataloader(self) -> DataLoader[Batch]:
        """The held-out pictures, in order."""
        return self._loader(torch.from_numpy(self._split.held_out), shuffle=False, drop_last=False)

    def _loader(self, rows: Tensor, *, shuffle: bool, drop_last: bool) -> DataLoader[Batch]:
        return DataLoader(
            _Rows(self._pictures, self._labels, rows),
            batch_size=self._batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            num_workers=self._workers,
            persistent_workers=self._workers > 0,
            pin_memory=torch.cuda.is_available(),
            collate_fn=_as_is,
        )
