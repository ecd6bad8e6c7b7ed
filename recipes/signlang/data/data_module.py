"""Batches of decoded pictures."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from recipes.signlang.data.augment import augment
from recipes.signlang.data.image_set import ImageSet
from recipes.signlang.data.picture_data import Batch, FilePictures, MemoryPictures
from recipes.signlang.data.record import DataRecord
from recipes.signlang.data.split import Split
from recipes.signlang.errors import RecipeError
from recipes.signlang.machine import usable_cores
from recipes.signlang.settings import InputKind

__all__ = ["SignData", "default_workers"]


def _as_is(batch: Any) -> Any:
    return batch


def default_workers(input_kind: InputKind = InputKind.MEMORY) -> int:
    """Worker processes that help.

    Taking a batch from memory costs microseconds, so two workers keep up with any device; with fewer than three cores
    they would only take time from the training itself. Decoding files takes as many as there are cores to spare.

    Args:
        input_kind: Where batches come from.
    """
    cores = usable_cores()
    if cores <= 2:
        return 0
    return 2 if input_kind is InputKind.MEMORY else min(cores - 1, 16)


class SignData(LightningDataModule):
    """Training and held-out batches: ``(n, 1, size, size)`` bytes and ``(n,)`` labels.

    Args:
        images: The data set.
        split: Which pictures train.
        batch_size: Pictures a batch.
        workers: Worker processes.
        input_kind: Decoded once into memory, or from the files each time.
        moved: Whether training pictures are rotated and shifted a little: on the device, or by the workers when they
            decode files.
        record: What the checkpoints of a training are to tell of its data.

    Raises:
        RecipeError: There are no files to decode.
    """

    def __init__(
        self,
        images: ImageSet,
        split: Split,
        batch_size: int,
        workers: int,
        *,
        input_kind: InputKind = InputKind.MEMORY,
        moved: bool = False,
        record: DataRecord | None = None,
    ) -> None:
        super().__init__()
        if input_kind is InputKind.FILES and images.names is None:
            raise RecipeError(images.path, "its pictures lie in tables, not in files", "Leave out --input files")
        self._images = images
        self._pictures = torch.from_numpy(images.pictures)
        self._labels = torch.from_numpy(images.labels)
        self._split = split
        self._batch_size = batch_size
        self._workers = workers
        self._from_files = input_kind is InputKind.FILES
        self._moved = moved
        self._record = record

    def state_dict(self) -> dict[str, Any]:
        """What Lightning puts into checkpoints: the record, under the name of this class."""
        return {} if self._record is None else self._record.as_state()

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:  # noqa: ARG002
        """Move training pictures a little, on the device."""
        if not self._moved or self._from_files or self.trainer is None or not self.trainer.training:
            return batch
        pictures, labels = batch
        return augment(pictures), labels

    def train_dataloader(self) -> DataLoader[Batch]:
        """Shuffled; the last, smaller batch is left out where there are others, as batch norm needs many pictures."""
        training = torch.from_numpy(self._split.training)
        return self._loader(training, training=True, drop_last=len(training) > self._batch_size)

    def val_dataloader(self) -> DataLoader[Batch]:
        """The held-out pictures, in order."""
        return self._loader(torch.from_numpy(self._split.held_out), training=False, drop_last=False)

    def _loader(self, rows: Tensor, *, training: bool, drop_last: bool) -> DataLoader[Batch]:
        return DataLoader(
            self._from_disk(rows, moved=training and self._moved) if self._from_files else self._from_memory(rows),
            batch_size=self._batch_size,
            shuffle=training,
            drop_last=drop_last,
            num_workers=self._workers,
            persistent_workers=self._workers > 0,
            pin_memory=torch.cuda.is_available(),
            collate_fn=None if self._from_files else _as_is,
        )

    def _from_memory(self, rows: Tensor) -> Dataset[Batch]:
        return MemoryPictures(self._pictures, self._labels, rows)

    def _from_disk(self, rows: Tensor, *, moved: bool) -> Dataset[Batch]:
        names, size = self._images.names, self._images.pictures.shape[-1]
        assert names is not None
        return FilePictures(self._images.path, names, self._labels, rows, size, moved=moved)
