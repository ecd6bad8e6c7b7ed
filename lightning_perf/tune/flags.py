"""`TorchFlags`: torch's global settings of a process, which change its speed and are not part of any module."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["TorchFlags"]


@dataclass(frozen=True)
class TorchFlags:
    """Settings that a user's script may have made before it tunes, and that a fresh process does not know.

    Attributes:
        threads: CPU threads of an operator.
        matmul_precision: ``highest``, ``high`` or ``medium``.
        cudnn_benchmark: Whether cuDNN measures its algorithms.
        cudnn_deterministic: Whether it takes deterministic ones only.
        cudnn_tf32: Whether its FP32 convolutions may compute in TF32.
        default_dtype: Of new tensors.
    """

    threads: int
    matmul_precision: str
    cudnn_benchmark: bool
    cudnn_deterministic: bool
    cudnn_tf32: bool
    default_dtype: torch.dtype

    @classmethod
    def current(cls) -> TorchFlags:
        """Those of this process."""
        return cls(
            torch.get_num_threads(),
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.allow_tf32,
            torch.get_default_dtype(),
        )

    def set(self) -> None:
        """Make this process have them."""
        torch.set_num_threads(self.threads)
        if torch.get_float32_matmul_precision() != self.matmul_precision:
            torch.set_float32_matmul_precision(self.matmul_precision)
        torch.backends.cudnn.benchmark = self.cudnn_benchmark
        torch.backends.cudnn.deterministic = self.cudnn_deterministic
        torch.backends.cudnn.allow_tf32 = self.cudnn_tf32
        torch.set_default_dtype(self.default_dtype)
