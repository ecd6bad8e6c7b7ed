"""TF32: reads which FP32 arithmetic a process uses, and sets it during a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from lightning_perf.run_files.numerics.precision import Fp32Arithmetic


def read_fp32_arithmetic(device: torch.device) -> Fp32Arithmetic:
    """Read which FP32 arithmetic the process uses."""
    return Fp32Arithmetic(
        device_has_tf32=_has_tf32(device),
        tf32_matmul=torch.backends.cuda.matmul.fp32_precision == "tf32",
        tf32_convolution=_cudnn().conv.fp32_precision == "tf32",
    )


class Tf32Override:
    """Turns TF32 on or off for matrix products, convolutions and recurrent layers, until it is undone.

    The older flags are set, since torch and Lightning both read them, and raise when only the newer ones are set. For
    cuDNN, the older flag alone would leave its parts to ``torch.backends.fp32_precision``, which may be ``tf32``.
    """

    def __init__(self, setting: Literal["on", "off"]) -> None:
        self._flags: Fp32Flags | None = Fp32Flags.read()
        torch.set_float32_matmul_precision("high" if setting == "on" else "highest")
        _cudnn().allow_tf32 = setting == "on"
        _cudnn().conv.fp32_precision = _cudnn().rnn.fp32_precision = "tf32" if setting == "on" else "ieee"

    def undo(self) -> None:
        """Restore the flags. A second call does nothing."""
        if self._flags is not None:
            self._flags.write()
            self._flags = None


@dataclass(frozen=True)
class Fp32Flags:
    """All flags of this process about FP32 products.

    Torch has two generations of them, and raises when the older are read after the newer were set by themselves.

    Attributes:
        old_matmul: ``highest``, ``high`` or ``medium``; None where it cannot be read.
        old_cudnn: Whether FP32 convolutions may compute in TF32; None where it cannot be read.
        matmul: Arithmetic of CUDA's FP32 matrix products, e.g. ``tf32``.
        recurrent: The same of cuDNN's recurrent layers.
        cpu_matmul: The same of the CPU's matrix products.
    """

    old_matmul: str | None
    old_cudnn: bool | None
    matmul: str
    convolution: str
    recurrent: str
    cpu_matmul: str

    @classmethod
    def read(cls) -> Fp32Flags:
        """Read the flags of this process."""
        return cls(
            old_matmul=_or_none(torch.get_float32_matmul_precision),
            old_cudnn=_or_none(lambda: bool(_cudnn().allow_tf32)),
            matmul=torch.backends.cuda.matmul.fp32_precision,
            convolution=_cudnn().conv.fp32_precision,
            recurrent=_cudnn().rnn.fp32_precision,
            cpu_matmul=_mkldnn().matmul.fp32_precision,
        )

    def write(self) -> None:
        """Set the flags of this process."""
        if self.old_matmul is not None:
            torch.set_float32_matmul_precision(self.old_matmul)
        if self.old_cudnn is not None:
            _cudnn().allow_tf32 = self.old_cudnn
        torch.backends.cuda.matmul.fp32_precision = self.matmul
        _cudnn().conv.fp32_precision = self.convolution
        _cudnn().rnn.fp32_precision = self.recurrent
        _mkldnn().matmul.fp32_precision = self.cpu_matmul


def _has_tf32(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def _or_none(read: Any) -> Any:
    try:
        return read()
    except RuntimeError:
        return None


def _cudnn() -> Any:
    return torch.backends.cudnn


def _mkldnn() -> Any:
    return torch.backends.mkldnn
