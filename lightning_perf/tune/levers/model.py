"""Levers that change the model or its arithmetic: precision, layout, kept memory and compilation."""

from __future__ import annotations

import torch
from msgspec import Struct
from torch import nn

from lightning_perf.machine.environment import missing_cpp_compiler
from lightning_perf.machine.page_faults import KEEP_MEMORY, allocator_name, keep_memory
from lightning_perf.tune.errors import NotApplicableError
from lightning_perf.tune.levers.lever import Machine, Setting
from lightning_perf.tune.levers.optimizer import clipping_excludes_fusing, has_fused_optimizer
from lightning_perf.tune.training import Training

_FULL = ("32-true", "32", 32, None)
_BF16_CAPABILITY = (8, 0)
"""From Ampere on Tensor Cores take bfloat16 and TF32 (NVIDIA's A100 whitepaper)."""


class MixedPrecision(Struct, frozen=True):
    """Autocast to a 16-bit type."""

    precision: str

    def settings(self, training: Training) -> tuple[Setting, ...]:
        return (Setting("Trainer", {"precision": f'"{self.precision}"'}),)

    def missing(self, training: Training, machine: Machine) -> str | None:
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
        training.trainer["precision"] = self.precision


class TF32:
    """Matrix products of FP32 values in TF32."""

    def missing(self, training: Training, machine: Machine) -> str | None:
        if machine.capability is None or machine.capability < _BF16_CAPABILITY:
            return "needs a CUDA GPU with TF32"
        # The older `torch.get_float32_matmul_precision` raises where a user has set this by itself.
        return "is on already" if torch.backends.cuda.matmul.fp32_precision == "tf32" else None

    def settings(self, training: Training) -> tuple[Setting, ...]:
        line = 'torch.set_float32_matmul_precision("high")'
        return (Setting("statement", line=line, code=line),)

    def apply(self, training: Training) -> None:
        torch.set_float32_matmul_precision("high")


class ChannelsLast:
    """Weights of 2-D convolutions in the order that convolution kernels prefer; activations follow."""

    def missing(self, training: Training, machine: Machine) -> str | None:
        convolutions = [layer for layer in training.module.modules() if isinstance(layer, nn.Conv2d)]
        if not convolutions:
            return "the module has no 2-D convolution"
        large = [layer.weight for layer in convolutions if layer.weight.shape[1] > 1 and layer.weight.shape[2] > 1]
        if large and all(weight.is_contiguous(memory_format=torch.channels_last) for weight in large):
            return "the weights are in this order already"
        return None

    def settings(self, training: Training) -> tuple[Setting, ...]:
        line = "module = module.to(memory_format=torch.channels_last)"
        return (Setting("module", line=line, code="{}.to(memory_format=torch.channels_last)"),)

    def apply(self, training: Training) -> None:
        training.module.to(memory_format=torch.channels_last)


class CudnnBenchmark:
    """cuDNN measures its algorithms for each shape and takes the fastest."""

    def missing(self, training: Training, machine: Machine) -> str | None:
        if machine.device != "cuda":
            return "needs a CUDA GPU"
        if training.trainer.get("deterministic"):
            return "the Trainer is deterministic"
        if not any(isinstance(layer, nn.modules.conv._ConvNd) for layer in training.module.modules()):
            return "the module has no convolution"
        return "is on already" if training.trainer.get("benchmark") or torch.backends.cudnn.benchmark else None

    def settings(self, training: Training) -> tuple[Setting, ...]:
        return (Setting("Trainer", {"benchmark": "True"}),)

    def apply(self, training: Training) -> None:
        training.trainer["benchmark"] = True


class KeptMemory:
    """glibc keeps freed memory for the next step, instead of giving it back to the system."""

    def missing(self, training: Training, machine: Machine) -> str | None:
        if machine.device != "cpu":
            return "the model trains on a device"
        allocator = allocator_name()
        return None if allocator == "glibc" else f"needs glibc's allocator, and this is {allocator or 'another one'}"

    def settings(self, training: Training) -> tuple[Setting, ...]:
        settings = " ".join(f"{name}={value}" for name, value in KEEP_MEMORY.items())
        return (Setting("", line=f"export {settings}  # in the shell, before the training starts"),)

    def apply(self, training: Training) -> None:
        if not keep_memory():
            raise NotApplicableError("glibc does not take the setting")


class Compiled(Struct, frozen=True):
    """The module compiled by TorchInductor.

    Attributes:
        mode: `torch.compile`'s mode; ``reduce-overhead`` replays CUDA graphs.
    """

    mode: str

    def settings(self, training: Training) -> tuple[Setting, ...]:
        mode = "" if self.mode == "default" else f', mode="{self.mode}"'
        line = f"trainer.fit(torch.compile(module{mode}), …)"
        return (Setting("module", line=line, code=f"torch.compile({{}}{mode})"),)

    def missing(self, training: Training, machine: Machine) -> str | None:
        if self.mode == "reduce-overhead" and machine.device != "cuda":
            return "CUDA graphs need a CUDA GPU"
        if machine.device == "cpu" and missing_cpp_compiler() is not None:
            return "needs a C++ compiler: install g++"
        is_compiled = any(isinstance(part, torch._dynamo.OptimizedModule) for part in training.module.modules())
        return "the module is compiled already" if is_compiled else None

    def apply(self, training: Training) -> None:
        training.module = torch.compile(training.module, mode=self.mode)
