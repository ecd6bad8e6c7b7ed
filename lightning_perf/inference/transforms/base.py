"""The base class of all transforms, and the copies that transforms change."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import nn

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.model.subject import Subject

__all__ = [
    "FineTune",
    "Transform",
    "check_outputs",
    "copy_module",
    "require_training",
    "weight_layers",
]


FineTune = Callable[[nn.Module, "nn.Module | None"], nn.Module]
"""Trains a changed model on the real training data and gives it back in eval mode on the CPU. The second argument is a
teacher to distil from, or None."""


class Transform(ABC):
    """One way to change a model.

    Attributes:
        name: Its name in tables and in ``--variants``, as ``prune-50``; transforms and a runtime are joined by ``+``.
        summary: What it does, in a line.
        needs_training: Whether the outcome is of no use without fine-tuning.
    """

    name: str
    summary: str
    needs_training: bool

    def missing(self) -> str | None:
        """Say which package is missing, or None. Imports nothing heavy."""
        return None

    @abstractmethod
    def apply(self, module: nn.Module, subject: Subject, fine_tune: FineTune | None) -> nn.Module:
        """Make a changed copy.

        Args:
            module: The model, or what an earlier transform made of it; it is left as it is.
            subject: What goes with it.
            fine_tune: Trains the copy; None when there is no training data.

        Returns:
            The changed copy, in eval mode on the CPU.

        Raises:
            VariantError: The model does not allow it, or it needs training and there is none.
        """


WeightLayer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
"""Layers whose weights are pruned."""


def copy_module(module: nn.Module) -> nn.Module:
    """Copy a model to change it: in eval mode, on the CPU, with all parameters trainable.

    Raises:
        VariantError: It cannot be copied.
    """
    try:
        changed = copy.deepcopy(module)
    except Exception as error:  # copying runs code of the model's, which may raise anything
        raise VariantError(f"{type(module).__name__} cannot be copied ({error})") from error
    return changed.eval().cpu().requires_grad_(True)


def require_training(name: str, fine_tune: FineTune | None) -> FineTune:
    """The trainer that a transform cannot do without.

    Raises:
        VariantError: There is none.
    """
    if fine_tune is None:
        raise VariantError(f"{name} needs training data: without training its outputs are of no use")
    return fine_tune


def check_outputs(name: str, changed: nn.Module, subject: Subject) -> nn.Module:
    """See that a changed model still takes the inputs and gives outputs of the same shape.

    Args:
        name: The transform.
        changed: What it made.
        subject: The original and its inputs.

    Returns:
        The changed model, in eval mode on the CPU.

    Raises:
        VariantError: It does not, or its outputs are not finite.
    """
    changed = changed.eval().cpu()
    inputs = subject.inputs[:2]
    with torch.inference_mode():
        expected = subject.module(inputs.clone()).shape
        try:
            outputs = changed(inputs.clone())
        except Exception as error:
            raise VariantError(f"after {name} the model does not run ({error})") from error
    if outputs.shape != expected:
        raise VariantError(f"{name} gives outputs of shape {tuple(outputs.shape)}, not {tuple(expected)}")
    if not torch.isfinite(outputs).all():
        raise VariantError(f"after {name} the outputs are not finite")
    return changed


def weight_layers(module: nn.Module) -> list[WeightLayer]:
    """Linear layers and convolutions, in the order of ``modules()``."""
    return [layer for layer in module.modules() if isinstance(layer, WeightLayer)]
