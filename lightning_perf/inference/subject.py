"""`Subject`: the trained model under study and the real pictures that go with it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["Subject"]


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
