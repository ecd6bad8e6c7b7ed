"""What transforms share: a copy to change, and a check of what came out."""

from __future__ import annotations

import copy

import torch
from torch import nn

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.subject import Subject
from lightning_perf.inference.transform import FineTune

__all__ = ["check_outputs", "copy_module", "require_training", "weight_layers"]

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
