"""`Transform`: one way to make a model smaller before a runtime takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import nn

from lightning_perf.inference.subject import Subject

__all__ = ["FineTune", "Transform"]

FineTune = Callable[[nn.Module, "nn.Module | None"], nn.Module]
"""Trains a changed model on the real training data and gives it back in eval mode on the CPU. The second argument is a
teacher to distil from, or None."""


class Transform(Protocol):
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
        ...

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
        ...
