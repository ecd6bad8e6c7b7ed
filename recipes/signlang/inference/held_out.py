"""Find the pictures that a checkpoint was trained on, and the held-out ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_perf.inference import Validation
from recipes.signlang.data.data_module import SignData
from recipes.signlang.data.image_set import ImageSet
from recipes.signlang.data.loading import load_data, training_digest
from recipes.signlang.data.split import Split, split_images
from recipes.signlang.errors import RecipeError
from recipes.signlang.inference.distillation import TemperatureData
from recipes.signlang.settings import SplitKind, TrainSettings
from recipes.signlang.training.checkpoint import TrainedModel

_BATCH = 32
_SEED = 0
_JUDGED = 0.2
"""Share of the training pictures that judge the temperatures of distillation."""


@dataclass(frozen=True, eq=False)
class StudyData:
    """Pictures to build and to judge the variants of a checkpoint with.

    Attributes:
        validation: Held-out pictures.
        calibration: Some training pictures, ``(n, 1, size, size)`` grey values as float32.
        training: All training pictures, for fine-tuning.
        notes: Remarks for the reader of the results.
        temperature_data: Four fifths and a fifth of the training pictures, to choose a temperature for distillation;
            None if a label has a single picture.
    """

    validation: Validation
    calibration: Tensor
    training: SignData
    notes: tuple[str, ...]
    temperature_data: TemperatureData | None = None


def gather_data(
    trained: TrainedModel,
    on_progress: Callable[[str], None],
    *,
    data: Path | None = None,
    cache_dir: Path | None = None,
    unseen: bool = False,
    limit: int = 2000,
    calibration: int = 256,
) -> StudyData:
    """Repeat the split of the training.

    Args:
        trained: The checkpoint.
        on_progress: Called with each line of progress.
        data: Path of the data; None for their path during the training.
        cache_dir: Folder of the cached synthetic set.
        unseen: Trust the user that none of the data was trained on, whatever the checkpoint says.
        limit: Most held-out pictures, drawn with a fixed seed.
        calibration: Most training pictures for calibration, drawn with a fixed seed.

    Raises:
        RecipeError: The data cannot be read, have labels that the checkpoint does not know, or differ from its training
            data, so that no picture is known to be held out.
    """
    images, split = load_data(_settings(trained, data, cache_dir, unseen=unseen), on_progress)
    labels = _class_numbers(trained, images)
    if not unseen:
        _check_same(trained, images, split)
    rng = np.random.default_rng(_SEED)
    judged = _some(split.held_out, limit, rng)
    by_capture = trained.record is None or trained.record.split == SplitKind.CAPTURE.value
    units = len(np.unique(images.captures[judged])) if by_capture else len(judged)
    moved = trained.record is not None and trained.record.augment
    images = replace(images, labels=labels, classes=trained.classes)
    return StudyData(
        validation=Validation(_inputs(images, judged), torch.from_numpy(labels[judged]), units),
        calibration=_inputs(images, _some(split.training, calibration, rng)),
        training=SignData(images, split, _BATCH, 0, moved=moved),
        notes=_notes(trained, images, split, len(judged), units, unseen=unseen),
        temperature_data=_temperature_data(images, split, moved=moved),
    )


def _temperature_data(images: ImageSet, split: Split, *, moved: bool) -> TemperatureData | None:
    """Split the training pictures again, by whole captures if possible."""
    rows = split.training
    # The split needs labels and captures only, so the pictures are not copied.
    some = replace(images, labels=images.labels[rows], captures=images.captures[rows], held_out=None)
    present = np.unique(some.labels)
    some = replace(some, labels=np.searchsorted(present, some.labels), classes=tuple(map(str, present)))
    for kind in (SplitKind.CAPTURE, SplitKind.RANDOM):
        try:
            inner = split_images(some, kind, _JUDGED, _SEED)
        except RecipeError:  # a label has a single capture or picture
            continue
        inner = replace(inner, training=rows[inner.training], held_out=rows[inner.held_out])
        labels = torch.from_numpy(images.labels[inner.held_out])
        pictures = _inputs(images, inner.held_out)
        held_out = list(zip(torch.split(pictures, _BATCH), torch.split(labels, _BATCH), strict=True))
        return TemperatureData(SignData(images, inner, _BATCH, 0, moved=moved), held_out)
    return None


def _settings(trained: TrainedModel, data: Path | None, cache_dir: Path | None, *, unseen: bool) -> TrainSettings:
    if unseen:
        if data is None:
            raise RecipeError("--unseen", "needs the pictures of --data", "Add --data PATH")
        return TrainSettings(data=data, cache_dir=cache_dir, image_size=trained.image_size)
    if trained.record is None:
        problem = "the checkpoint does not record its training pictures, so no picture is known to be held out"
        raise RecipeError(trained.path, problem, "Train it again, or add --unseen if --data has no training pictures")
    return trained.record.settings(data=data, cache_dir=cache_dir)


def _class_numbers(trained: TrainedModel, images: ImageSet) -> NDArray[np.int64]:
    """Return the labels of the pictures, numbered like in the network."""
    unknown = [label for label in images.classes if label not in trained.classes]
    if unknown:
        problem = f"has pictures of {', '.join(unknown)}, which {trained.path} was not trained on"
        raise RecipeError(images.path, problem, f"Its labels are {', '.join(trained.classes)}")
    numbers = np.array([trained.classes.index(label) for label in images.classes], np.int64)
    return numbers[images.labels]


def _check_same(trained: TrainedModel, images: ImageSet, split: Split) -> None:
    assert trained.record is not None
    if training_digest(images, split) != trained.record.digest:
        problem = f"the training pictures differ from those of {trained.path}"
        action = "Give the same, unchanged data with --data, or add --unseen if no picture was trained on"
        raise RecipeError(images.path, problem, action)


def _some(rows: NDArray[np.int64], most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))


def _inputs(images: ImageSet, rows: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(images.pictures[rows]).unsqueeze(1).float()


def _notes(
    trained: TrainedModel, images: ImageSet, split: Split, judged: int, units: int, *, unseen: bool
) -> tuple[str, ...]:
    kind = "synthetic hands" if trained.record is not None and trained.record.data is None else images.path.name
    accuracy = (
        f"Accuracy on {judged} of {len(split.held_out)} held-out pictures of {kind} in {units} independent units; "
        f"split {split.rule}."
    )
    inputs = "Inputs are grey values of 0 to 255: the scaling is part of the model."
    seen = "The same pictures chose the epoch of the checkpoint, so its own accuracy is slightly too high."
    word = "By --unseen, none of the pictures was trained on; this was not checked."
    return (accuracy, inputs, word if unseen else seen)
