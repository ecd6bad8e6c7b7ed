"""Data sets of pictures as a DataLoader takes them: whole batches from memory, or picture by picture from files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

from recipes.signlang.data.augment import MAX_DEGREES, MAX_SHIFT
from recipes.signlang.data.decoding import decode_picture
from recipes.signlang.data.sources import Source, open_source

__all__ = ["Batch", "FilePictures", "MemoryPictures"]

Batch = tuple[Tensor, Tensor]
"""``(n, 1, size, size)`` of uint8 and ``(n,)`` labels."""


class MemoryPictures(Dataset[Batch]):
    """Some rows of decoded pictures; a batch is one indexing of one array, not a loop over pictures.

    Args:
        pictures: ``(m, size, size)`` of uint8.
        labels: ``(m,)``.
        rows: Which of them, ``(k,)``.
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
    """Some pictures of a folder or zip, read and decoded whenever they are drawn.

    Args:
        path: The folder or zip.
        names: The files, ``(m,)``.
        labels: ``(m,)``.
        rows: Which of them, ``(k,)``.
        size: Width and height to scale to.
        moved: Whether pictures are rotated and shifted a little.
    """

    def __init__(
        self, path: Path, names: Sequence[str], labels: Tensor, rows: Tensor, size: int, *, moved: bool
    ) -> None:
        self._path, self._names, self._labels, self._rows, self._size = path, names, labels, rows, size
        self._move = v2.RandomAffine(MAX_DEGREES, (MAX_SHIFT, MAX_SHIFT), interpolation=v2.InterpolationMode.BILINEAR)
        self._moved = moved
        self._opened: tuple[int, Source] | None = None

    @property
    def samples(self) -> list[tuple[str, int]]:
        """File and label of each picture, as torchvision's ``ImageFolder`` has them; of a zip, the zip once."""
        if not self._path.is_dir():
            return [(str(self._path), 0)]
        return [(str(self._path / self._names[row]), int(self._labels[row])) for row in self._rows]

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
