"""Mixed precision and TF32."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.training import Training

__all__ = ["TF32", "MixedPrecision"]

_FULL = ("32-true", "32", 32, None)
_BF16_CAPABILITY = (8, 0)
"""From Ampere on Tensor Cores take bfloat16 and TF32 (NVIDIA's A100 whitepaper)."""


@dataclass(frozen=True)
class MixedPrecision:
    """Autocast to a 16-bit type.

    Attributes:
        name: Lightning's name of the precision.
    """

    name: str
    family: str = "precision"
    mends: tuple[str, ...] = ("half-precision", "tensor-cores", "cpu-bf16")
    changes_training: bool = False

    def lines(self, training: Training) -> tuple[str, ...]:  # noqa: ARG002
        """See `Lever`."""
        return (f'Trainer(precision="{self.name}")',)

    def missing(self, training: Training, machine: Machine) -> str | None:
        """See `Lever`."""
        if training.trainer.get("precision") not in _FULL:
            return f"the Trainer has a precision already, {training.trainer['precision']}"
        if self.name == "16-mixed" and machine.device != "cuda":
            return "needs a CUDA GPU"
        if self.name == "bf16-mixed" and machine.capability is not None and machine.capability < _BF16_CAPABILITY:
            return "this GPU has no bfloat16 arithmetic"
        return None

    def apply(self, training: Training) -> None:
        """See `Lever`."""
        training.trainer["precision"] = self.name


@dataclass(frozen=True)
class TF32:
    """Matrix products of FP32 values in TF32."""

    name: str = "tf32"
    family: str = "tf32"
    mends: tuple[str, ...] = ("tf32-off",)
    changes_training: bool = False

    def missing(self, training: Training, machine: Machine) -> str | None:  # noqa: ARG002
        """See `Lever`."""
        if machine.capability is None or machine.capability < _BF16_CAPABILITY:
            return "needs a CUDA GPU with TF32"
        # The older `torch.get_float32_matmul_precision` raises where a user has set this by itself.
        return "is on already" if torch.backends.cuda.matmul.fp32_precision == "tf32" else None

    def lines(self, training: Training) -> tuple[str, ...]:  # noqa: ARG002
        """See `Lever`."""
        return ('torch.set_float32_matmul_precision("high")',)

    def apply(self, training: Training) -> None:  # noqa: ARG002
        """See `Lever`."""
        torch.set_float32_matmul_precision("high")
