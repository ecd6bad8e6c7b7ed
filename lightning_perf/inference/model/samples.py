"""Collect held-out, calibration and training samples from a data module, a loader or a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace
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

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.model.subject import shape_text

NOISE = (
    "The inputs are random noise: latency and size are valid, but the outputs of int8 and other lossy variants on real "
    "inputs are unknown."
)


class Validation(Struct, frozen=True):
    """Held-out inputs with their labels, for measuring accuracy.

    Attributes:
        inputs: Inputs for the model, float32 on the CPU, ``(n, …)``.
        labels: The class index of each input, ``(n,)``.
        units: Number of independent inputs, for the confidence interval. Set it if some inputs are copies of each
            other; None means that all inputs are independent.
    """

    inputs: Tensor
    labels: Tensor
    units: int | None = None

    def __post_init__(self) -> None:
        """Check that inputs and labels match."""
        if len(self.inputs) == 0:
            raise InferenceError("The validation data are empty. Give --data with held-out inputs and labels.")
        if self.labels.shape != (len(self.inputs),):
            raise InferenceError(
                f"validation: labels have the shape {tuple(self.labels.shape)} for {len(self.inputs)} inputs. "
                "Give one class index per input."
            )
        if self.labels.dtype.is_floating_point or self.labels.dtype == torch.bool:
            raise InferenceError(f"validation: labels are {self.labels.dtype}. Give class indices as integers.")
        if self.units is not None and not 1 <= self.units <= len(self.inputs):
            raise InferenceError(f"validation: units must be from 1 to {len(self.inputs)} (inputs), got {self.units}.")


BATCH = 64

_WANTED = "Give a DataLoader or Dataset of (input, label), a pair of tensors, or a LightningDataModule"


class Samples(Struct, frozen=True):
    """Held-out inputs, calibration inputs and training data of one study.

    Attributes:
        inputs: Held-out inputs, float32, ``(n, …)``.
        validation: The same inputs with their labels; None if the labels are not classes.
        calibration: Inputs from the training side; None if only held-out data were given.
        training: Batches to fine-tune on, or a LightningDataModule; None if only held-out data were given, or if the
            labels are not classes.
        notes: Remarks for the reader of the results.
    """

    inputs: Tensor
    validation: Validation | None
    calibration: Tensor | None = None
    training: Any = None
    notes: tuple[str, ...] = ()


def gather_samples(data: Any, limit: int, calibration: int) -> Samples:
    """Collect validation and calibration data.

    From an indexable dataset, the inputs are spread evenly over the whole: many datasets are sorted by class, and their
    first inputs cover only a few classes. From a stream, the first inputs are taken.

    Args:
        data: A LightningDataModule, or held-out data: a DataLoader, a Dataset, or a pair ``(inputs, labels)`` of
            tensors.

    Raises:
        InferenceError: The data have another type, are empty, or cannot be read.
    """
    if hasattr(data, "val_dataloader") and hasattr(data, "setup"):
        return _from_module(data, limit, calibration)
    return _judged(*_pairs(data, limit, "validation data"))


def noise_samples(count: int, shape: Sequence[int]) -> Samples:
    """Return random inputs, to measure latency and size without data."""
    inputs = torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))
    return Samples(inputs, None, notes=(NOISE,))


def _from_module(data: Any, limit: int, calibration: int) -> Samples:
    name = type(data).__name__
    try:
        data.prepare_data()
        data.setup("fit")
        held_out = _first_loader(data.val_dataloader()) if _has_own(data, "val_dataloader") else None
        training = _first_loader(data.train_dataloader()) if _has_own(data, "train_dataloader") else None
    except Exception as error:
        raise InferenceError(f"{name}: setting up its data failed ({reason_of(error)}).") from error
    if held_out is None:
        raise InferenceError(f"{name} has no validation data. Let its val_dataloader() return a DataLoader.")
    samples = _judged(*_pairs(held_out, limit, "validation data"))
    if training is None:
        return samples
    inputs = _pairs(training, calibration, "training data")[0]
    return replace(samples, calibration=inputs, training=data if samples.validation is not None else None)


def _judged(inputs: Tensor, labels: Tensor) -> Samples:
    """Return the inputs, with `Validation` if their labels are classes."""
    if not labels.is_floating_point() and labels.dtype != torch.bool and labels.ndim == 1:
        return Samples(inputs, Validation(inputs, labels))
    note = (
        f"Accuracy was not measured and nothing was trained: the labels are {labels.dtype} of shape "
        f"{shape_text(tuple(labels.shape[1:]))}, not one class index per input. The table of outputs shows how far "
        "each variant is from the original."
    )
    return Samples(inputs, None, notes=(note,))


def _has_own(data: Any, method: str) -> bool:
    """Say whether a LightningDataModule defines this loader itself; Lightning's own defaults raise errors."""
    home: str = getattr(type(data), method).__module__
    return home.partition(".")[0] not in ("lightning", "pytorch_lightning")


def _first_loader(loaders: Any) -> Any:
    """Return the loader, or the first of several; None without a loader."""
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
        raise InferenceError(f"{what}: cannot read a {type(data).__name__}. {_WANTED}.")
    inputs_parts: list[Tensor] = []
    label_parts: list[Tensor] = []
    taken = 0
    try:
        for batch in islice(_loader(data, limit), limit):
            if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
                count = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
                raise InferenceError(
                    f"{what}: each batch is a {type(batch).__name__}{count}, not (inputs, labels). {_WANTED}."
                )
            inputs, labels = (torch.as_tensor(part) for part in batch)
            inputs_parts.append(inputs[: limit - taken].float().cpu())
            label_parts.append(labels[: limit - taken].cpu())
            taken += len(inputs_parts[-1])
            if taken >= limit:
                break
    except InferenceError:
        raise
    except Exception as error:  # the user's dataset runs here
        raise InferenceError(f"{what}: reading failed ({reason_of(error)}).") from error
    if not taken:
        raise InferenceError(f"The {what} are empty. Give at least one input.")
    return _joined(inputs_parts, "inputs", what), _joined(label_parts, "labels", what)


def _joined(parts: Sequence[Tensor], name: str, what: str) -> Tensor:
    shapes = list(dict.fromkeys(tuple(part.shape[1:]) for part in parts))
    if len(shapes) > 1:
        raise InferenceError(
            f"{what}: {name} have different shapes, e.g. {shapes[0]} and {shapes[1]}. Variants are built for one "
            "shape: resize or pad the inputs in the dataset."
        )
    return torch.cat(list(parts))


def _loader(data: Any, limit: int) -> Iterable[Any]:
    """Return batches of at most `limit` rows, spread evenly if rows can be indexed."""
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
    """Return at most `most` row numbers, evenly spread."""
    return [row * length // most for row in range(most)] if length > most else list(range(length))
