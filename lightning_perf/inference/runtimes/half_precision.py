"""Run a model in half precision: weights and inputs in FP16 or bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lightning_perf.inference.errors import variant_errors
from lightning_perf.inference.model.subject import Subject, on_device
from lightning_perf.inference.runtimes.base import Call, Runtime
from lightning_perf.inference.runtimes.eager import copied, load_module, module_call, save_module
from lightning_perf.machine.processor import BF16_FLAGS, FP16_FLAGS, cpu_flags

__all__ = [
    "Bf16",
    "Fp16",
    "build_half",
    "load_half",
]


def build_half(subject: Subject, folder: Path, dtype: torch.dtype) -> Mapping[str, str]:
    """Write the module with 16-bit weights, with channels innermost if the inputs have channels.

    Tensor Cores and the 16-bit convolutions of processors expect channels innermost.

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


class Bf16(Runtime):
    """Runs with weights and activations in bfloat16: half the bytes, the range of float32, 8 bits of precision.

    It works on every processor. Its provenance says whether the processor has bfloat16 arithmetic; without it, bfloat16
    is slower than float32.
    """

    name = "bf16"
    summary = "PyTorch, bfloat16, channels innermost"

    def missing(self, device: torch.device) -> str | None:
        """Return why a GPU has no bfloat16 arithmetic, or None."""
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


class Fp16(Runtime):
    """Runs with weights and activations in float16: half the bytes, 11 bits of precision, nothing above 65,504."""

    name = "fp16"
    summary = "PyTorch, float16, channels innermost"

    def missing(self, device: torch.device) -> str | None:
        """Return why a processor is unsuitable: without float16 arithmetic, convolutions ran about 30 times slower."""
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
