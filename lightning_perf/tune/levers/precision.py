"""Mixed precision and TF32."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.levers.optimizer import clipping_excludes_fusing, has_fused_optimizer
from lightning_perf.tune.training import Training

_FULL = ("32-true", "32", 32, None)
_BF16_CAPABILITY = (8, 0)
"""From Ampere on Tensor Cores take bfloat16 and TF32 (NVIDIA's A100 whitepaper)."""


@dataclass(frozen=True)
class MixedPrecision:
    """Autocast to a 16-bit type."""

    precision: str

    def lines(self, training: Training) -> tuple[str, ...]:  # noqa: ARG002
        """See `Change`."""
        return (f'Trainer(precision="{self.precision}")',)

    def missing(self, training: Training, machine: Machine) -> str | None:
        """See `Change`."""
        if training.trainer.get("precision") not in _FULL:
            return f"the Trainer has a precision already, {training.trainer['precision']}"
        if self.precision == "16-mixed" and machine.device != "cuda":
            return "needs a CUDA GPU"
        if self.precision == "bf16-mixed" and machine.capability is not None and machine.capability < _BF16_CAPABILITY:
            return "this GPU has no bfloat16 arithmetic"
        reason = clipping_excludes_fusing(training, self.precision)
        if reason is not None and has_fused_optimizer(training):
            return "Lightning refuses gradient_clip_val with the module's fused optimizer in mixed precision"
        return None

    def apply(self, training: Training) -> None:
        """See `Change`."""
        training.trainer["precision"] = self.precision


class TF32:
    """Matrix products of FP32 values in TF32."""

    def missing(self, training: Training, machine: Machine) -> str | None:  # noqa: ARG002
        """See `Change`."""
        if machine.capability is None or machine.capability < _BF16_CAPABILITY:
            return "needs a CUDA GPU with TF32"
        # The older `torch.get_float32_matmul_precision` raises where a user has set this by itself.
        return "is on already" if torch.backends.cuda.matmul.fp32_precision == "tf32" else None

    def lines(self, training: Training) -> tuple[str, ...]:  # noqa: ARG002
        """See `Change`."""
        return ('torch.set_float32_matmul_precision("high")',)

    def apply(self, training: Training) -> None:  # noqa: ARG002
        """See `Change`."""
        torch.set_float32_matmul_precision("high")
