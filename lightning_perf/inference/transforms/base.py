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
        has_teacher: Whether it is trained on the outputs of the original.
    """

    name: str
    summary: str
    needs_training = True
    has_teacher = False

    def missing(self) -> str | None:
        """Return which package is missing, or None. Imports nothing heavy."""
        return None

    def apply(self, module: nn.Module, subject: Subject, fine_tune: FineTune | None) -> nn.Module:
        """Make a changed copy, and train it if it needs that.

        Args:
            fine_tune: Trains the copy; None without training data.

        Raises:
            VariantError: The model is not suitable, or the transform lacks training data.
        """
        if self.needs_training and fine_tune is None:
            raise VariantError(f"{self.name} needs training data: without training its outputs are useless")
        changed = self.change(module, subject)
        if self.needs_training and fine_tune is not None:
            changed = fine_tune(self._checked(changed, subject), subject.module if self.has_teacher else None)
        return self._checked(self.finish(changed), subject)

    @abstractmethod
    def change(self, module: nn.Module, subject: Subject) -> nn.Module:
        """Return a changed copy of the model, or another model in its place."""

    def finish(self, module: nn.Module) -> nn.Module:
        """Finish a changed model after its training."""
        return module

    def _checked(self, changed: nn.Module, subject: Subject) -> nn.Module:
        """Check that a changed model still takes the inputs and returns finite outputs of the same shape."""
        changed = changed.eval().cpu()
        inputs = subject.inputs[:2]
        with torch.inference_mode():
            expected = subject.module(inputs.clone()).shape
            try:
                outputs = changed(inputs.clone())
            except Exception as error:
                raise VariantError(f"after {self.name} the model does not run ({error})") from error
        if outputs.shape != expected:
            raise VariantError(
                f"after {self.name} the outputs have shape {tuple(outputs.shape)}, not {tuple(expected)}"
            )
        if not torch.isfinite(outputs).all():
            raise VariantError(f"after {self.name} the outputs are NaN or infinite")
        return changed


def copy_module(module: nn.Module) -> nn.Module:
    """Return a copy of a model to change: in eval mode, on the CPU, with all parameters trainable."""
    try:
        changed = copy.deepcopy(module)
    except Exception as error:  # copying runs code of the model's, which may raise anything
        raise VariantError(f"{type(module).__name__} cannot be copied ({error})") from error
    return changed.eval().cpu().requires_grad_(True)


WeightLayer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
"""Layers with weights to prune."""


def weight_layers(module: nn.Module) -> list[WeightLayer]:
    """Return the linear layers and convolutions, in the order of ``modules()``."""
    return [layer for layer in module.modules() if isinstance(layer, WeightLayer)]


class Distil(Transform):
    """Trains a student, or the model that earlier transforms changed, on the outputs of the original and the labels.

    The teacher is always the original, even after other transforms. Without a teacher, the student learns from the
    labels alone. Only that row shows whether the teacher helped.
    """

    def __init__(
        self, student: str = "", make: Callable[[], nn.Module] | None = None, *, has_teacher: bool = True
    ) -> None:
        self.has_teacher = has_teacher
        self.name = f"{'distil' if has_teacher else 'alone'}{'-' if student else ''}{student}"
        lessons = "the original's outputs and the labels" if has_teacher else "the labels alone"
        self.summary = f"{student or 'the changed model'}, trained on {lessons}"
        self._make = make

    def change(self, module: nn.Module, subject: Subject) -> nn.Module:
        """Make the student, or take the changed model."""
        if self._make is not None:
            module = self._make()
        elif module is subject.module:
            raise VariantError(
                "distil needs a student: put a transform before it, e.g. prune-50+distil, or use distil-NAME"
            )
        return copy_module(module)
