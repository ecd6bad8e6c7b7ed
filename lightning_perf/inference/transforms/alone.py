"""A student trained without a teacher: what distillation is to be compared with."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from lightning_perf.inference.subject import Subject
from lightning_perf.inference.transform import FineTune
from lightning_perf.inference.transforms.copies import check_outputs, copy_module, require_training

__all__ = ["Alone"]


class Alone:
    """Trains a student on the labels alone.

    Without this row nobody can tell whether the teacher taught the student of ``distil-NAME`` anything.

    Args:
        student: Its name.
        make: Makes the untrained student.
    """

    needs_training = True

    def __init__(self, student: str, make: Callable[[], nn.Module]) -> None:
        self.name = f"alone-{student}"
        self.summary = f"{student} trained on the labels alone"
        self._make = make

    def missing(self) -> str | None:
        """Nothing can be missing."""
        return None

    def apply(self, module: nn.Module, subject: Subject, fine_tune: FineTune | None) -> nn.Module:  # noqa: ARG002
        """Make the student and train it."""
        train = require_training(self.name, fine_tune)
        student = check_outputs(self.name, copy_module(self._make()), subject)
        return check_outputs(self.name, train(student, None), subject)
