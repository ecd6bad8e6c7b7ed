"""Distillation: train a student on the original's outputs, or the same student without them."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.transforms.base import FineTune, Transform, check_outputs, copy_module, require_training


class StudentBaseline(Transform):
    """Trains a student on the labels alone.

    Only this row shows whether the teacher helped the student of ``distil-NAME``.
    """

    needs_training = True

    def __init__(self, student: str, make: Callable[[], nn.Module]) -> None:
        self.name = f"alone-{student}"
        self.summary = f"{student}, trained on the labels alone"
        self._make = make

    def apply(self, module: nn.Module, subject: Subject, fine_tune: FineTune | None) -> nn.Module:  # noqa: ARG002
        """Make the student and train it."""
        train = require_training(self.name, fine_tune)
        student = check_outputs(self.name, copy_module(self._make()), subject)
        return check_outputs(self.name, train(student, None), subject)


class Distil(Transform):
    """Trains a student on the outputs of the model under study.

    The teacher is always the original, even after other transforms.
    """

    needs_training = True

    def __init__(self, student: str | None = None, make: Callable[[], nn.Module] | None = None) -> None:
        self.name = "distil" if student is None else f"distil-{student}"
        self.summary = f"{student or 'the changed model'}, trained on the original's outputs and the labels"
        self._make = make

    def apply(self, module: nn.Module, subject: Subject, fine_tune: FineTune | None) -> nn.Module:
        """Make the student, or take the changed model, and train it."""
        train = require_training(self.name, fine_tune)
        if self._make is not None:
            student = copy_module(self._make())
        elif module is subject.module:
            raise VariantError(
                "distil needs a student: put a transform before it, e.g. prune-50+distil, or use distil-NAME"
            )
        else:
            student = copy_module(module)
        check_outputs(self.name, student, subject)
        return check_outputs(self.name, train(student, subject.module), subject)
