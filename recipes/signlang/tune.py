"""The recipe as `lightning-perf tune` takes it: ``lightning-perf tune recipes.signlang.tune:resnet18``."""

from __future__ import annotations

from typing import Any

from recipes.signlang.data_module import SignData, default_workers
from recipes.signlang.image_set import read_image_set
from recipes.signlang.module import SignModule
from recipes.signlang.settings import TrainSettings
from recipes.signlang.split import split_images
from recipes.signlang.synthetic import SyntheticSet, default_cache_dir, ensure_synthetic

__all__ = ["cnn", "resnet18", "training"]


def training(settings: TrainSettings) -> tuple[SignModule, SignData, dict[str, Any]]:
    """Module, data and the Trainer's arguments of a training.

    Args:
        settings: The training.

    Raises:
        RecipeError: The data cannot be used.
    """
    cache = settings.cache_dir or default_cache_dir()
    path = settings.data or ensure_synthetic(SyntheticSet(seed=settings.seed, size=settings.image_size), cache)
    images = read_image_set(path, settings.image_size, copies=settings.copies, skip_unreadable=settings.skip_unreadable)
    split = split_images(images, settings.split, settings.validation_fraction, settings.seed)
    workers = default_workers(settings.input) if settings.workers is None else settings.workers
    data = SignData(images, split, settings.batch_size, workers, input_kind=settings.input, moved=settings.augment)
    module = SignModule(settings.model, images.classes, settings.image_size, settings.lr)
    return module, data, {"precision": settings.precision, "accelerator": settings.accelerator, "devices": 1}


def resnet18() -> tuple[SignModule, SignData, dict[str, Any]]:
    """ResNet-18 on the synthetic set, with the recipe's defaults."""
    return training(TrainSettings())


def cnn() -> tuple[SignModule, SignData, dict[str, Any]]:
    """The small CNN on the synthetic set, with the recipe's defaults."""
    return training(TrainSettings(model="cnn"))
