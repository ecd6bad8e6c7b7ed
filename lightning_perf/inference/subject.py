"""`Subject`: the trained model under study and the real pictures that go with it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["Subject", "shape_text"]


@dataclass(frozen=True)
class Subject:
    """What variants are made of.

    Attributes:
        module: The model: float32, in eval mode, on the CPU. Nobody changes it; who needs to, deep-copies it.
        inputs: A batch of real inputs as the model takes them, float32 on the CPU, ``(n, …)``.
        calibration: Real inputs to calibrate int8 with, from the training side of the split, ``(m, …)``.
        device: Where variants run.
        threads: Threads of the CPU that a variant may use.
    """

    module: nn.Module
    inputs: Tensor
    calibration: Tensor
    device: torch.device
    threads: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch."""
        return tuple(self.inputs.shape[1:])


def shape_text(shape: tuple[int, ...]) -> str:
    """Shape of a batch of any size, for messages.

    Args:
        shape: Without the batch.

    Example:
        >>> shape_text((3, 224, 224))
        '(n, 3, 224, 224)'
    """
    return f"({', '.join(map(str, ('n', *shape)))})"
