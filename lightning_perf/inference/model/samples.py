"""Held-out samples: inputs and targets from a data module or a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from lightning_perf.inference.errors import InferenceError, reason_of
from lightning_perf.inference.model.subject import shape_text

__all__ = [
    "Samples",
    "Validation",
    "gather_samples",
]


@dataclass(frozen=True)
class Validation:
    """What accuracy is measured on.

    Attributes:
        inputs: As the model takes them, float32 on the CPU, ``(n, …)``.
        labels: Index of the right class of each, ``(n,)``.
        units: Independent trials among them, for the interval, where some inputs are copies of each other; None for
            as many as there are inputs.
    """

    inputs: Tensor
    labels: Tensor
    units: int | None = None

    def __post_init__(self) -> None:
        """Check that inputs and labels belong together."""
        if len(self.inputs) == 0:
            raise InferenceError("no validation data: it holds no input. Give --data with held-out inputs and labels.")
        if self.labels.shape != (len(self.inputs),):
            raise InferenceError(
                f"validation: labels of shape {tuple(self.labels.shape)} for {len(self.inputs)} inputs. "
                "Give one class index an input."
            )
        if self.labels.dtype.is_floating_point or self.labels.dtype == torch.bool:
            raise InferenceError(f"validation: labels of {self.labels.dtype}. Give class indices, whole numbers.")
        if self.units is not None and not 1 <= self.units <= len(self.inputs):
            raise InferenceError(f"validation: {self.units} independent units among {len(self.inputs)} inputs")


BATCH = 64

_WANTED = "Give a DataLoader or Dataset of (input, label), a pair of tensors, or a LightningDataModule"


@dataclass(frozen=True)
class Samples:
    """What a model is studied with.

    Attributes:
        inputs: Held-out inputs, float32, ``(n, …)``.
        validation: The same with their labels; None when the labels are no classes.
        calibration: Inputs from the training side; None when only held-out data were given.
        training: Batches to fine-tune on, or a LightningDataModule; None when only held-out data were given, or labels
            that are no classes.
        notes: What a reader of the results must know.
    """

    inputs: Tensor
    validation: Validation | None
    calibration: Tensor | None = None
    training: Any = None
    notes: tuple[str, ...] = ()


def gather_samples(data: Any, limit: int, calibration: int) -> Samples:
    """Gather validation and calibration data.

    Of data sets that can be indexed, inputs are taken evenly spread over the whole: many are sorted by class, and the
    first ones would be of a few classes. Of streams, the first ones are taken.

    Args:
        data: A LightningDataModule; or held-out data: a DataLoader, a Dataset, a pair ``(inputs, labels)`` of tensors.
        limit: Held-out inputs to take at most.
        calibration: Training inputs to take for calibration at most.

    Raises:
        InferenceError: The data are of another kind, empty, or cannot be read.
    """
    if hasattr(data, "val_dataloader") and hasattr(data, "setup"):
        return _from_module(data, limit, calibration)
    return _judged(*_pairs(data, limit, "validation data"))


def _from_module(data: Any, limit: int, calibration: int) -> Samples:
    name = type(data).__name__
    try:
        data.prepare_data()
        data.setup("fit")
        held_out = _first_loader(data.val_dataloader()) if _has_own(data, "val_dataloader") else None
        training = _first_loader(data.train_dataloader()) if _has_own(data, "train_dataloader") else None
    except Exception as error:
        raise InferenceError(f"{name}: setting up its data fails ({reason_of(error)}).") from error
    if held_out is None:
        raise InferenceError(f"no validation data: {name}.val_dataloader() gives none.")
    samples = _judged(*_pairs(held_out, limit, "validation data"))
    if training is None:
        return samples
    inputs = _pairs(training, calibration, "training data")[0]
    return replace(samples, calibration=inputs, training=data if samples.validation is not None else None)


def _judged(inputs: Tensor, labels: Tensor) -> Samples:
    """Inputs to judge by, when their labels are classes."""
    if not labels.is_floating_point() and labels.dtype != torch.bool and labels.ndim == 1:
        return Samples(inputs, Validation(inputs, labels))
    note = (
        f"Accuracy was not measured and nothing was trained: the labels are {labels.dtype} of shape "
        f"{shape_text(tuple(labels.shape[1:]))}, not the number of a class each. How far outputs are from "
        "the original's stands in the table of outputs."
    )
    return Samples(inputs, None, notes=(note,))


def _has_own(data: Any, method: str) -> bool:
    """Whether a LightningDataModule has such a loader: those of Lightning itself raise errors."""
    home: str = getattr(type(data), method).__module__
    return home.partition(".")[0] not in ("lightning", "pytorch_lightning")


def _first_loader(loaders: Any) -> Any:
    """The first one where there are several; None where there is none."""
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    if isinstance(loaders, Sequence):
        return loaders[0] if loaders else None
    return loaders


def _pairs(data: Any, limit: int, what: str) -> tuple[Tensor, Tensor]:
    if isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        rows = _spread(len(data[0]), limit)
        return data[0][rows].float(), data[1][rows]
    if not isinstance(data, (Dataset, Iterable)):
        raise InferenceError(f"{what}: a {type(data).__name__} is none. {_WANTED}.")
    inputs_parts: list[Tensor] = []
    label_parts: list[Tensor] = []
    taken = 0
    try:
        for batch in islice(_loader(data, limit), limit):
            if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
                count = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
                raise InferenceError(
                    f"{what}: its batches are a {type(batch).__name__}{count}, not (inputs, labels). {_WANTED}."
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
        raise InferenceError(f"no {what}: it holds no input.")
    return _joined(inputs_parts, "inputs", what), _joined(label_parts, "labels", what)


def _joined(parts: Sequence[Tensor], name: str, what: str) -> Tensor:
    shapes = list(dict.fromkeys(tuple(part.shape[1:]) for part in parts))
    if len(shapes) > 1:
        raise InferenceError(
            f"{what}: its {name} are of different shapes, as {shapes[0]} and {shapes[1]}. Variants are built for one: "
            "resize or pad them in the data set."
        )
    return torch.cat(list(parts))


def _loader(data: Any, limit: int) -> Iterable[Any]:
    """Batches of at most so many rows, evenly spread where rows can be indexed."""
    if isinstance(data, DataLoader):
        plain = type(data.batch_sampler) is BatchSampler and isinstance(
            data.sampler, (SequentialSampler, RandomSampler)
        )
        rows: Any = data.dataset
        if not plain or isinstance(rows, IterableDataset) or len(rows) <= limit:
            return data
        some = Subset(rows, _spread(len(rows), limit))
        return DataLoader(some, batch_size=data.batch_size, collate_fn=data.collate_fn)
    if isinstance(data, IterableDataset):
        return DataLoader(data, batch_size=BATCH)
    if isinstance(data, Dataset):
        return DataLoader(Subset(data, _spread(len(data), limit)), batch_size=BATCH)  # type: ignore[arg-type]
    return data  # type: ignore[no-any-return]


def _spread(length: int, most: int) -> list[int]:
    """At most so many rows, evenly spread."""
    return [row * length // most for row in range(most)] if length > most else list(range(length))
