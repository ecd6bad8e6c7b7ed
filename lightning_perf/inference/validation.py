"""`Validation`: real inputs with their labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_perf.inference.errors import InferenceError

__all__ = ["Validation"]


@dataclass(frozen=True)
class Validation:
    """What accuracy is measured on.

    Attributes:
        inputs: As the model takes them, float32 on the CPU, ``(n, …)``.
        labels: Index of the right class of each, ``(n,)``.
        units: Independent trials among them, for the interval, where some inputs are copies of each other; None for
            as many as there are inputs.
    """

    inputs: Tensor
    labels: Tensor
    units: int | None = None

    def __post_init__(self) -> None:
        """Check that inputs and labels belong together."""
        if len(self.inputs) == 0:
            raise InferenceError("no validation data: it holds no input. Give --data with held-out inputs and labels.")
        if self.labels.shape != (len(self.inputs),):
            raise InferenceError(
                f"validation: labels of shape {tuple(self.labels.shape)} for {len(self.inputs)} inputs. "
                "Give one class index an input."
            )
        if self.labels.dtype.is_floating_point or self.labels.dtype == torch.bool:
            raise InferenceError(f"validation: labels of {self.labels.dtype}. Give class indices, whole numbers.")
        if self.units is not None and not 1 <= self.units <= len(self.inputs):
            raise InferenceError(f"validation: {self.units} independent units among {len(self.inputs)} inputs")
