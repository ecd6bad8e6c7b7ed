"""TF32: reads which FP32 arithmetic a process uses, and sets it during a run."""

from __future__ import annotations

from typing import Any, Literal

import torch
from msgspec import Struct

from lightning_perf.run_files.numerics.precision import Fp32Arithmetic


def read_fp32_arithmetic(device: torch.device) -> Fp32Arithmetic:
    """Read which FP32 arithmetic the process uses."""
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    return Fp32Arithmetic(
        device_has_tf32=is_nvidia and torch.cuda.get_device_capability(device) >= (8, 0),
        tf32_matmul=torch.backends.cuda.matmul.fp32_precision == "tf32",
        tf32_convolution=_cudnn().conv.fp32_precision == "tf32",
    )


def set_tf32(setting: Literal["on", "off"]) -> Fp32Flags:
    """Turn TF32 on or off for matrix products, convolutions and recurrent layers. Return the flags until now.

    The older flags are set, since torch and Lightning both read them, and raise when only the newer ones are set. For
    cuDNN, the older flag alone would leave its parts to ``torch.backends.fp32_precision``, which may be ``tf32``.
    """
    before = Fp32Flags.read()
    torch.set_float32_matmul_precision("high" if setting == "on" else "highest")
    _cudnn().allow_tf32 = setting == "on"
    _cudnn().conv.fp32_precision = _cudnn().rnn.fp32_precision = "tf32" if setting == "on" else "ieee"
    return before


class Fp32Flags(Struct, frozen=True):
    """All flags of this process about FP32 products.

    Torch has two generations of them, and raises when the older are read after the newer were set by themselves. None
    stands for an older flag that cannot be read.
    """

    old_matmul: str | None
    old_cudnn: bool | None
    new: tuple[str, ...]

    @classmethod
    def read(cls) -> Fp32Flags:
        """Read the flags of this process."""
        return cls(
            old_matmul=_or_none(torch.get_float32_matmul_precision),
            old_cudnn=_or_none(lambda: bool(_cudnn().allow_tf32)),
            new=tuple(backend.fp32_precision for backend in _backends()),
        )

    def write(self) -> None:
        """Set the flags of this process."""
        if self.old_matmul is not None:
            torch.set_float32_matmul_precision(self.old_matmul)
        if self.old_cudnn is not None:
            _cudnn().allow_tf32 = self.old_cudnn
        for backend, precision in zip(_backends(), self.new, strict=True):
            backend.fp32_precision = precision


def _or_none(read: Any) -> Any:
    try:
        return read()
    except RuntimeError:
        return None


def _cudnn() -> Any:
    return torch.backends.cudnn


def _backends() -> tuple[Any, ...]:
    """Return the newer flags: matrix products, convolutions and recurrent layers on CUDA, products on the CPU."""
    mkldnn: Any = torch.backends.mkldnn
    return torch.backends.cuda.matmul, _cudnn().conv, _cudnn().rnn, mkldnn.matmul
