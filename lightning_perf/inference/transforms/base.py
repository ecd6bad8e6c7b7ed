"""The base class of all transforms, and functions that copy and check models."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import nn

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.model.subject import Subject

FineTune = Callable[[nn.Module, "nn.Module | None"], nn.Module]
"""A function that trains a changed model on real training data and returns it in eval mode on the CPU. Its second
argument is a teacher to distil from, or None."""


class Transform(ABC):
    """One way to change a model.

    Attributes:
        name: Name in tables and in ``--variants``, e.g. ``prune-50``; transforms and a runtime are joined by ``+``.
        needs_training: Whether the changed model is useless without fine-tuning.
    """

    name: str
    summary: str
    needs_training: bool

    def missing(self) -> str | None:
        """Return which package is missing, or None. Imports nothing heavy."""
        return None

    @abstractmethod
    def apply(self, module: nn.Module, subject: Subject, fine_tune: FineTune | None) -> nn.Module:
        """Make a changed copy.

        Args:
            fine_tune: Trains the copy; None without training data.

        Raises:
            VariantError: The model is not suitable, or the transform lacks training data.
        """


WeightLayer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
"""Layers with weights to prune."""


def copy_module(module: nn.Module) -> nn.Module:
    """Return a copy of a model to change: in eval mode, on the CPU, with all parameters trainable."""
    try:
        changed = copy.deepcopy(module)
    except Exception as error:  # copying runs code of the model's, which may raise anything
        raise VariantError(f"{type(module).__name__} cannot be copied ({error})") from error
    return changed.eval().cpu().requires_grad_(True)


def require_training(name: str, fine_tune: FineTune | None) -> FineTune:
    """Return the trainer that a transform needs."""
    if fine_tune is None:
        raise VariantError(f"{name} needs training data: without training its outputs are useless")
    return fine_tune


def check_outputs(name: str, changed: nn.Module, subject: Subject) -> nn.Module:
    """Check that a changed model still takes the inputs and returns finite outputs of the same shape."""
    changed = changed.eval().cpu()
    inputs = subject.inputs[:2]
    with torch.inference_mode():
        expected = subject.module(inputs.clone()).shape
        try:
            outputs = changed(inputs.clone())
        except Exception as error:
            raise VariantError(f"after {name} the model does not run ({error})") from error
    if outputs.shape != expected:
        raise VariantError(f"after {name} the outputs have shape {tuple(outputs.shape)}, not {tuple(expected)}")
    if not torch.isfinite(outputs).all():
        raise VariantError(f"after {name} the outputs are NaN or infinite")
    return changed


def weight_layers(module: nn.Module) -> list[WeightLayer]:
    """Return the linear layers and convolutions, in the order of ``modules()``."""
    return [layer for layer in module.modules() if isinstance(layer, WeightLayer)]
