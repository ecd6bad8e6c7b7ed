"""PyTorch in float16."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.half_precision import build_half, load_half
from lightning_perf.inference.subject import Subject
from lightning_perf.processor import FP16_FLAGS, cpu_flags

__all__ = ["Fp16"]


class Fp16:
    """Weights and activations in float16: half the bytes, 11 bits of precision, nothing above 65,504."""

    name = "fp16"
    summary = "PyTorch, float16, channels innermost"

    def missing(self, device: torch.device) -> str | None:
        """Say that a processor has no float16 arithmetic: convolutions ran about 30 times slower than in float32."""
        if device.type != "cpu" or (cpu_flags() or frozenset()) & FP16_FLAGS:
            return None
        return (
            "this processor has no float16 arithmetic (avx512_fp16), and without it convolutions run many times slower "
            "than in float32: use bf16, onnxruntime-int8, or a GPU"
        )

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Write the module in float16."""
        return {**build_half(subject, folder, torch.float16), "arithmetic": "native"}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Read the module."""
        return load_half(folder, device, torch.float16)
