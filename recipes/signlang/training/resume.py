"""Whether a checkpoint is of the training that is to go on from it."""

from __future__ import annotations

from pathlib import Path

from recipes.signlang.data.image_set import ImageSet
from recipes.signlang.data.record import training_digest
from recipes.signlang.data.split import Split
from recipes.signlang.errors import RecipeError
from recipes.signlang.settings import TrainSettings
from recipes.signlang.training.checkpoint import load_checkpoint

__all__ = ["check_resumable"]

_SAME = "Give the options of that training"


def check_resumable(path: Path, settings: TrainSettings, images: ImageSet, split: Split) -> None:
    """Make sure that a checkpoint is of this network and these pictures.

    Args:
        path: The checkpoint.
        settings: The training.
        images: Its pictures.
        split: Which of them train.

    Raises:
        RecipeError: It is no checkpoint, or that of another training.
    """
    trained = load_checkpoint(path)
    if (trained.model, trained.image_size) != (settings.model, settings.image_size):
        problem = f"is of a {trained.model} on pictures of {trained.image_size} px"
        raise RecipeError(path, problem, f"{_SAME}: --model {trained.model} --image-size {trained.image_size}")
    # Other pictures than before would mix those that trained with those held out.
    if trained.record is None or trained.record.digest != training_digest(images, split):
        raise RecipeError(path, "was not trained on these pictures", f"{_SAME}: --data, --split, --seed and the like")
