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


class HalfPrecision(Runtime):
    """Runs with 16-bit weights, with channels innermost if the inputs have channels.

    Tensor Cores and the 16-bit convolutions of processors expect channels innermost.
    """

    dtype: torch.dtype

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Write the module with 16-bit weights, after running it once."""
        half = copied(subject.module, subject.inputs, dtype=self.dtype, channels_last=True)
        with variant_errors(f"the model does not run in {self.dtype}"):
            call = module_call(half.to(subject.device), dtype=self.dtype, channels_last=True)
            call(subject.inputs[:1].to(subject.device))
        save_module(half.cpu(), folder)
        dtype = str(self.dtype).removeprefix("torch.")
        return {"dtype": dtype, "memory_format": "channels_last", "arithmetic": self.arithmetic(subject.device)}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Read the module."""
        return module_call(load_module(folder, device), dtype=self.dtype, channels_last=True)

    def arithmetic(self, device: torch.device) -> str:  # noqa: ARG002
        """Say whether the device has arithmetic of this type."""
        return "native"


class Bf16(HalfPrecision):
    """Runs with weights and activations in bfloat16: half the bytes, the range of float32, 8 bits of precision.

    It works on every processor. Its provenance says whether the processor has bfloat16 arithmetic; without it, bfloat16
    is slower than float32.
    """

    name = "bf16"
    summary = "PyTorch, bfloat16, channels innermost"
    dtype = torch.bfloat16

    def missing(self, device: torch.device) -> str | None:
        """Return why a GPU has no bfloat16 arithmetic, or None."""
        if device.type == "cuda":
            with on_device(device):
                if not torch.cuda.is_bf16_supported(including_emulation=False):
                    return "this GPU has no bfloat16 arithmetic (Ampere and later have): use fp16"
        return None

    def arithmetic(self, device: torch.device) -> str:
        """Say whether the device has bfloat16 arithmetic."""
        if device.type != "cpu":
            return "native"
        flags = cpu_flags()
        if flags is None:
            return "unknown: this system does not list the processor's instructions"
        return "native" if flags & BF16_FLAGS else "emulated: the processor has neither avx512_bf16 nor amx_bf16"


class Fp16(HalfPrecision):
    """Runs with weights and activations in float16: half the bytes, 11 bits of precision, nothing above 65,504."""

    name = "fp16"
    summary = "PyTorch, float16, channels innermost"
    dtype = torch.float16

    def missing(self, device: torch.device) -> str | None:
        """Return why a processor is unsuitable: without float16 arithmetic, convolutions ran about 30 times slower."""
        if device.type != "cpu" or (cpu_flags() or frozenset()) & FP16_FLAGS:
            return None
        return (
            "this processor has no float16 arithmetic (avx512_fp16), and without it convolutions run many times slower "
            "than in float32: use bf16, onnxruntime-int8, or a GPU"
        )
