"""What `Bf16` and `Fp16` share: the whole model in a type of 16 bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.faults import variant_errors
from lightning_perf.inference.runtimes.torch_module import copied, load_module, module_call, save_module
from lightning_perf.inference.subject import Subject

__all__ = ["build_half", "load_half"]


def build_half(subject: Subject, folder: Path, dtype: torch.dtype) -> Mapping[str, str]:
    """Write the module with weights of 16 bits, channels innermost where inputs have channels.

    Tensor Cores and the processors' own 16-bit convolutions work on channels innermost.

    Raises:
        VariantError: The model does not run in this type.
    """
    half = copied(subject.module, subject.inputs, dtype=dtype, channels_last=True)
    with variant_errors(f"the model does not run in {dtype}"):
        module_call(half.to(subject.device), dtype=dtype, channels_last=True)(subject.inputs[:1].to(subject.device))
    save_module(half.cpu(), folder)
    return {"dtype": str(dtype).removeprefix("torch."), "memory_format": "channels_last"}


def load_half(folder: Path, device: torch.device, dtype: torch.dtype) -> Call:
    """Read the module."""
    return module_call(load_module(folder, device), dtype=dtype, channels_last=True)
