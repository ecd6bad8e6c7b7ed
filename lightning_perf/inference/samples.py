"""Gather tensors out of what the user has: a DataLoader, a Dataset, a LightningDataModule, or tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.runtimes.faults import reason_of
from lightning_perf.inference.validation import Validation

__all__ = ["Samples", "gather_samples"]

BATCH = 64

_WANTED = "Give a DataLoader or Dataset of (input, label), a pair of tensors, or a LightningDataModule"


@dataclass(frozen=True)
class Samples:
    """What a model is studied with.

    Attributes:
        validation: Held-out inputs with labels.
        calibration: Inputs from the training side; None when only held-out data were given.
        training: Batches to fine-tune on, or a LightningDataModule; None when only held-out data were given.
    """

    validation: Validation
    calibration: Tensor | None
    training: Any


def gather_samples(data: Any, limit: int, calibration: int) -> Samples:
    """Gather validation and calibration data.

    Args:
        data: A LightningDataModule; or held-out data: a DataLoader, a Dataset, a pair ``(inputs, labels)`` of tensors.
        limit: Held-out inputs to take at most, from the first.
        calibration: Training inputs to take for calibration.

    Raises:
        InferenceError: The data are of another kind, empty, or cannot be read.
    """
    if hasattr(data, "val_dataloader") and hasattr(data, "setup"):
        return _from_module(data, limit, calibration)
    return Samples(Validation(*_pairs(data, limit, "validation data")), None, None)


def _from_module(data: Any, limit: int, calibration: int) -> Samples:
    name = type(data).__name__
    try:
        data.prepare_data()
        data.setup("fit")
        held_out, training = data.val_dataloader(), data.train_dataloader()
    except Exception as error:
        raise InferenceError(f"{name}: setting up its data fails ({reason_of(error)}).") from error
    if not held_out:
        raise InferenceError(f"no validation data: {name}.val_dataloader() gives none.")
    if isinstance(held_out, (list, tuple)):
        held_out = held_out[0]
    validation = Validation(*_pairs(held_out, limit, "validation data"))
    inputs = _pairs(training, calibration, "training data")[0] if training else None
    return Samples(validation, inputs, data if training else None)


def _pairs(data: Any, limit: int, what: str) -> tuple[Tensor, Tensor]:
    if isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        inputs, labels = data[0][:limit], data[1][:limit]
        return inputs.float(), labels
    if isinstance(data, Dataset):
        rows: Any = data if isinstance(data, IterableDataset) else _First(data, limit)
        data = DataLoader(rows, batch_size=BATCH)
    if not isinstance(data, Iterable):
        raise InferenceError(f"{what}: a {type(data).__name__} is none. {_WANTED}.")
    inputs_parts: list[Tensor] = []
    label_parts: list[Tensor] = []
    taken = 0
    try:
        for batch in islice(data, limit):
            if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
                raise InferenceError(
                    f"{what}: its batches are a {type(batch).__name__}, not (inputs, labels). {_WANTED}."
                )
            inputs, labels = (torch.as_tensor(part) for part in batch)
            inputs_parts.append(inputs[: limit - taken].float().cpu())
            label_parts.append(labels[: limit - taken].cpu())
            taken += len(inputs_parts[-1])
            if taken >= limit:
                break
    except InferenceError:
        raise
    except Exception as error:  # the user's data set runs here
        raise InferenceError(f"{what}: reading fails ({reason_of(error)}).") from error
    if not taken:
        raise InferenceError(f"no {what}: it holds no batch.")
    return torch.cat(inputs_parts), torch.cat(label_parts)


class _First(Dataset[Any]):
    """The first rows of a data set."""

    def __init__(self, data: Any, limit: int) -> None:
        self._data, self._length = data, min(limit, len(data))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._data[index]
