"""PyTorch in bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lightning_perf.inference.device import on_device
from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.half_precision import build_half, load_half
from lightning_perf.inference.subject import Subject
from lightning_perf.processor import BF16_FLAGS, cpu_flags

__all__ = ["Bf16"]


class Bf16:
    """Weights and activations in bfloat16: half the bytes, float32's range, 8 bits of precision.

    It is built on every processor, and its provenance says whether the processor multiplies bfloat16 itself; one that
    does not is slower than with float32.
    """

    name = "bf16"
    summary = "PyTorch, bfloat16, channels innermost"

    def missing(self, device: torch.device) -> str | None:
        """Say that a GPU is too old for bfloat16."""
        if device.type == "cuda":
            with on_device(device):
                if not torch.cuda.is_bf16_supported(including_emulation=False):
                    return "this GPU has no bfloat16 arithmetic (Ampere and later have): use fp16"
        return None

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Write the module in bfloat16."""
        return {**build_half(subject, folder, torch.bfloat16), "arithmetic": _arithmetic(subject.device)}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Read the module."""
        return load_half(folder, device, torch.bfloat16)


def _arithmetic(device: torch.device) -> str:
    if device.type != "cpu":
        return "native"
    flags = cpu_flags()
    if flags is None:
        return "unknown: this system does not list the processor's instructions"
    return "native" if flags & BF16_FLAGS else "emulated: the processor has neither avx512_bf16 nor amx_bf16"
