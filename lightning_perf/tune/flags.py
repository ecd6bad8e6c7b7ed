"""`TorchFlags`: torch's global settings of a process, which change its speed and are not part of any module."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lightning_perf.callbacks.precision.tf32 import Fp32Flags

__all__ = ["TorchFlags"]


@dataclass(frozen=True)
class TorchFlags:
    """Settings that a user's script may have made before it tunes, and that a fresh process does not know.

    Attributes:
        threads: CPU threads of an operator.
        fp32: What FP32 products compute in.
        cudnn_benchmark: Whether cuDNN measures its algorithms.
        cudnn_deterministic: Whether it takes deterministic ones only.
        default_dtype: Of new tensors.
    """

    threads: int
    fp32: Fp32Flags
    cudnn_benchmark: bool
    cudnn_deterministic: bool
    default_dtype: torch.dtype

    @classmethod
    def current(cls) -> TorchFlags:
        """Those of this process."""
        return cls(
            torch.get_num_threads(),
            Fp32Flags.read(),
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.get_default_dtype(),
        )

    def set(self) -> None:
        """Make this process have them."""
        torch.set_num_threads(self.threads)
        self.fp32.write()
        torch.backends.cudnn.benchmark = self.cudnn_benchmark
        torch.backends.cudnn.deterministic = self.cudnn_deterministic
        torch.set_default_dtype(self.default_dtype)
