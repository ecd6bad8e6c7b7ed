"""Feed batches of pictures to a training: datasets in memory or on disk, augmentation, and the data module."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from recipes.signlang.data.decoding import decode_picture
from recipes.signlang.data.image_set import ImageSet
from recipes.signlang.data.loading import DataRecord
from recipes.signlang.data.sources import Source, open_source
from recipes.signlang.data.split import Split
from recipes.signlang.errors import RecipeError
from recipes.signlang.machine import usable_cores
from recipes.signlang.settings import InputKind

MAX_DEGREES = 10.0
"""The copies in the original data are rotated by up to as much."""
MAX_SHIFT = 0.05
"""Largest shift, as a share of the picture's width and height."""


def augment(pictures: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Rotate and shift every picture of a batch by its own random amount, repeating the grey values at the edges.

    This takes one call of the device's sampler for the whole batch. Transforms of ``torchvision.transforms.v2`` draw
    one amount per call, so they would need one call per picture.

    Args:
        pictures: ``(n, 1, size, size)`` of uint8.
        generator: Random number generator on the CPU; torch's own if not given.

    Returns:
        ``(n, 1, size, size)`` of uint8 on the same device.
    """
    degrees, shift_x, shift_y = torch.empty(3, len(pictures)).uniform_(-1, 1, generator=generator)
    angle = degrees * math.radians(MAX_DEGREES)
    cosine, sine = angle.cos(), angle.sin()
    # Coordinates run from −1 to 1, so a share of the width is twice as much of them.
    rows = [cosine, -sine, shift_x * 2 * MAX_SHIFT, sine, cosine, shift_y * 2 * MAX_SHIFT]
    affine = torch.stack(rows, dim=1).view(-1, 2, 3).to(pictures.device, non_blocking=True)
    moved = functional.grid_sample(
        pictures.float(), _grid(affine, *pictures.shape[2:]), padding_mode="border", align_corners=False
    )
    return moved.round_().to(torch.uint8)  # between its neighbours, so within 0 and 255


def _grid(affine: Tensor, height: int, width: int) -> Tensor:
    """Return the source of each pixel, like `torch.nn.functional.affine_grid`, ``(n, height, width, 2)``.

    PyTorch's function multiplies a matrix for each pixel, which took two thirds of an augmentation on a CPU. Adding one
    term per column and one per row is enough.
    """
    of_x, of_y, constant = (part[..., None, None] for part in affine.unbind(dim=2))
    columns = of_x * _centres(width, affine) + constant
    return (columns + of_y * _centres(height, affine)[:, None]).permute(0, 2, 3, 1)


def _centres(count: int, like: Tensor) -> Tensor:
    """Return the centres of a row of pixels, with the edges of the picture at −1 and 1."""
    return (torch.arange(count, dtype=like.dtype, device=like.device) * 2 + 1) / count - 1


Batch = tuple[Tensor, Tensor]
"""``(n, 1, size, size)`` of uint8 and ``(n,)`` labels."""


class MemoryPictures(Dataset[Batch]):
    """A dataset of decoded pictures in memory. A batch takes one indexing operation, not a loop over pictures.

    Args:
        pictures: ``(m, size, size)`` of uint8.
        labels: ``(m,)``.
        rows: Rows to use, ``(k,)``.
    """

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


class FilePictures(Dataset[Batch]):
    """A dataset of pictures in a folder or zip, which are read and decoded each time they are drawn.

    Args:
        path: The folder or zip.
        names: The files, ``(m,)``.
        labels: ``(m,)``.
        rows: Rows to use, ``(k,)``.
        size: Width and height after scaling.
        moved: Whether pictures are rotated and shifted slightly.
    """

    def __init__(
        self, path: Path, names: Sequence[str], labels: Tensor, rows: Tensor, size: int, *, moved: bool
    ) -> None:
        self._path, self._names, self._labels, self._rows, self._size = path, names, labels, rows, size
        self._move = v2.RandomAffine(MAX_DEGREES, (MAX_SHIFT, MAX_SHIFT), interpolation=v2.InterpolationMode.BILINEAR)
        self._moved = moved
        self._opened: tuple[int, Source] | None = None
        self.samples = [(str(path), 0)]
        """File and label of each picture, like in torchvision's ``ImageFolder``; for a zip, only the zip itself."""
        if path.is_dir():
            self.samples = [(str(path / names[row]), int(labels[row])) for row in rows]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Batch:
        row = int(self._rows[index])
        decoded = decode_picture(self._source().read(self._names[row]), self._size)
        picture = torch.from_numpy(decoded.copy()).unsqueeze(0)
        return (self._move(picture) if self._moved else picture), self._labels[row]

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_opened": None}

    def _source(self) -> Source:
        # A worker must not share the file position of a zip that was opened before the fork.
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), open_source(self._path))
        return self._opened[1]


def _as_is(batch: Any) -> Any:
    return batch


def default_workers(input_kind: InputKind = InputKind.MEMORY) -> int:
    """Return a suitable number of worker processes.

    Taking a batch from memory costs microseconds, so two workers keep up with any device. With fewer than three cores,
    they would only compete with the training. Decoding files uses all cores but one, up to 16.

    Args:
        input_kind: Source of the batches.
    """
    cores = usable_cores()
    if cores <= 2:
        return 0
    return 2 if input_kind is InputKind.MEMORY else min(cores - 1, 16)


class SignData(LightningDataModule):
    """Provides training and held-out batches: ``(n, 1, size, size)`` bytes and ``(n,)`` labels.

    Args:
        images: The dataset.
        split: The training and the held-out pictures.
        batch_size: Pictures per batch.
        workers: Worker processes.
        input_kind: Pictures decoded once into memory, or from their files each time.
        moved: Whether training pictures are rotated and shifted slightly: on the device, or in the workers if they
            decode files.
        record: Facts about the data for the checkpoints.

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
        """Return the record; Lightning saves it in checkpoints under the name of this class."""
        return {} if self._record is None else self._record.as_state()

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:  # noqa: ARG002
        """Rotate and shift training pictures slightly, on the device."""
        if not self._moved or self._from_files or self.trainer is None or not self.trainer.training:
            return batch
        pictures, labels = batch
        return augment(pictures), labels

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return shuffled batches, without the last, smaller one if there are others, because batch norm needs many."""
        training = torch.from_numpy(self._split.training)
        return self._loader(training, training=True, drop_last=len(training) > self._batch_size)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the held-out pictures, in order."""
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
