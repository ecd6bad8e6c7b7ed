"""Provide the recipe for `lightning-perf tune`: ``lightning-perf tune recipes.signlang.tune:resnet18``."""

from __future__ import annotations

from typing import Any

from recipes.signlang.data.data_module import SignData
from recipes.signlang.data.loading import load_data
from recipes.signlang.settings import TrainSettings
from recipes.signlang.training.module import SignModule
from recipes.signlang.training.train import build_training


def training(settings: TrainSettings) -> tuple[SignModule, SignData, dict[str, Any]]:
    """Return the module, the data and the Trainer's arguments of a training.

    Args:
        settings: Settings of the training.

    Raises:
        RecipeError: The data cannot be used.
    """
    images, split = load_data(settings, lambda _: None)
    module, data = build_training(settings, images, split)
    return module, data, {"precision": settings.precision, "accelerator": settings.accelerator, "devices": 1}


def resnet18() -> tuple[SignModule, SignData, dict[str, Any]]:
    """Return a training of ResNet-18 on the synthetic set, with the recipe's defaults."""
    return training(TrainSettings())


def cnn() -> tuple[SignModule, SignData, dict[str, Any]]:
    """Return a training of the small CNN on the synthetic set, with the recipe's defaults."""
    return training(TrainSettings(model="cnn"))
