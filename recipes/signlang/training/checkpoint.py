"""Read the checkpoints that a training of this recipe wrote, to use or to resume them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recipes.signlang.data.data_module import SignData
from recipes.signlang.data.image_set import ImageSet
from recipes.signlang.data.loading import DataRecord, training_digest
from recipes.signlang.data.split import Split
from recipes.signlang.errors import RecipeError
from recipes.signlang.settings import TrainSettings
from recipes.signlang.training.model import MODELS, SignClassifier
from recipes.signlang.training.module import SignModule

_BEST = "best-*.ckpt"
_TRAIN = "Train one: python -m recipes.signlang"
_SAME = "Give the options of that training"


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """The content of a checkpoint.

    Attributes:
        path: The checkpoint.
        classifier: The network, in eval mode on the CPU.
        model: A key of `recipes.signlang.training.model.MODELS`.
        classes: The labels, in the order of the outputs.
        image_size: Width and height of its pictures in pixels.
        record: Record of its training pictures; None if the checkpoint has no record.
    """

    path: Path
    classifier: SignClassifier
    model: str
    classes: tuple[str, ...]
    image_size: int
    record: DataRecord | None


def newest_checkpoint(log_dir: Path) -> Path:
    """Return the newest best checkpoint of all runs.

    Args:
        log_dir: Folder of the logs.

    Raises:
        RecipeError: There is no checkpoint.
    """
    found = sorted(log_dir.rglob(_BEST), key=lambda path: path.stat().st_mtime_ns)
    if not found:
        raise RecipeError(log_dir, f"no checkpoint ({_BEST}) in it", f"Name one with --checkpoint. {_TRAIN}")
    return found[-1]


def load_checkpoint(path: Path) -> TrainedModel:
    """Load a checkpoint. Only tensors and plain values are read, so no code in it can run.

    Args:
        path: File that `recipes.signlang.training.train` wrote.

    Raises:
        RecipeError: The file does not exist, is not a checkpoint, or belongs to another model.
    """
    if not path.is_file():
        raise RecipeError(path, "no such checkpoint", f"Name a .ckpt file. {_TRAIN}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RecipeError(path, f"not a readable checkpoint ({reason})", _TRAIN) from error
    settings = content.get("hyper_parameters", {}) if isinstance(content, dict) else {}
    model, classes, size = settings.get("model"), settings.get("classes"), settings.get("image_size")
    if model not in MODELS or not classes or not isinstance(size, int) or "state_dict" not in content:
        raise RecipeError(path, "the checkpoint of another model than this recipe's", _TRAIN)
    module = SignModule(model, tuple(map(str, classes)), size)
    try:
        module.load_state_dict(content["state_dict"])
    except RuntimeError as error:
        difference = " ".join(str(error).splitlines()[1].split()) if "\n" in str(error) else str(error)
        raise RecipeError(path, f"its weights are not those of a {model} ({difference})", _TRAIN) from error
    classifier = SignClassifier(module.network).eval().requires_grad_(False)
    return TrainedModel(path, classifier, model, tuple(map(str, classes)), size, _record(content))


def _record(content: Mapping[str, Any]) -> DataRecord | None:
    try:
        return DataRecord.from_state(content[SignData.__qualname__])
    except (KeyError, TypeError):
        return None


def check_resumable(path: Path, settings: TrainSettings, images: ImageSet, split: Split) -> None:
    """Check that a checkpoint belongs to this network and these pictures.

    Args:
        path: The checkpoint.
        settings: Settings of the training.
        images: Pictures of the training.
        split: Their training and held-out sides.

    Raises:
        RecipeError: The file is not a checkpoint, or belongs to another training.
    """
    trained = load_checkpoint(path)
    if (trained.model, trained.image_size) != (settings.model, settings.image_size):
        problem = f"is of a {trained.model} on pictures of {trained.image_size} px"
        raise RecipeError(path, problem, f"{_SAME}: --model {trained.model} --image-size {trained.image_size}")
    # With other pictures, training pictures could end up among the held-out ones.
    if trained.record is None or trained.record.digest != training_digest(images, split):
        raise RecipeError(path, "was not trained on these pictures", f"{_SAME}: --data, --split, --seed and the like")
