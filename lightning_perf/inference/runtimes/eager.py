"""Run a module in PyTorch, operator by operator: in float32, with channels innermost, or in half precision."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import VariantError, variant_errors
from lightning_perf.inference.model import Subject, on_device
from lightning_perf.inference.runtimes.base import Call, Runtime
from lightning_perf.machine.processor import BF16_FLAGS, FP16_FLAGS, cpu_flags

MODULE_FILE = "module.pt"

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The memory format with channels innermost of images ``(n, c, h, w)`` and volumes ``(n, c, d, h, w)``."""


def save_module(module: nn.Module, folder: Path) -> None:
    """Write the whole module: its class by name, its weights by value, in their memory format.

    The weights alone are not enough: no constructor makes the shapes and layers of pruned and fused models.
    """
    try:
        torch.save(module, folder / MODULE_FILE)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise VariantError(
            f"the model cannot be pickled: {reason_of(error)}. Define its classes and functions at the top level of a "
            "module"
        ) from error


def load_module(folder: Path, device: torch.device) -> nn.Module:
    """Read a module that `save_module` wrote. The file is a pickle: reading it runs code from its author."""
    try:
        module = torch.load(folder / MODULE_FILE, map_location=device, weights_only=False)
    except (ImportError, AttributeError) as error:
        raise VariantError(
            f"the model's class cannot be imported: {reason_of(error)}. Put the folder of its file on PYTHONPATH, and "
            "define the class at the top level"
        ) from error
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise VariantError(f"{folder / MODULE_FILE} cannot be read: {reason_of(error)}") from error
    if not isinstance(module, nn.Module):
        raise VariantError(f"{folder / MODULE_FILE} holds a {type(module).__name__}, not a module")
    return module.eval()


def module_call(
    function: Callable[[Tensor], Tensor], *, dtype: torch.dtype = torch.float32, channels_last: bool = False
) -> Call:
    """Wrap a module as a `Call`: no gradients, float32 inputs and outputs."""
    formats = CHANNELS_LAST if channels_last else {}

    def call(inputs: Tensor) -> Tensor:
        with torch.inference_mode():
            memory_format = formats.get(inputs.ndim, torch.contiguous_format)
            outputs = function(inputs.to(dtype=dtype, memory_format=memory_format))
            if not isinstance(outputs, Tensor):
                raise VariantError(f"the model returns a {type(outputs).__name__}, but runtimes need one tensor")
            return outputs.float()

    return call


def copied(module: nn.Module, inputs: Tensor, *, dtype: torch.dtype, channels_last: bool) -> nn.Module:
    """Copy a module with another type, and with channels innermost if its inputs have channels."""
    with variant_errors("the model cannot be copied"):
        twin = copy.deepcopy(module).to(dtype=dtype)
        if channels_last and inputs.ndim in CHANNELS_LAST:
            twin = twin.to(memory_format=CHANNELS_LAST[inputs.ndim])
        return twin


class Eager(Runtime):
    """Runs the module itself, operator by operator.

    The file is a pickle of the whole module: loading it runs code from its author and needs the model's class. The
    number of CPU threads is torch's own for the process: `torch.set_num_threads`.

    Attributes:
        channels_last: Whether the channels of inputs are innermost in memory.
    """

    name = "eager"
    summary = "eager PyTorch, float32"
    dtype = torch.float32
    channels_last = False

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        save_module(subject.module, folder)
        return {"dtype": "float32"}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        return module_call(load_module(folder, device), dtype=self.dtype, channels_last=self.channels_last)


class ChannelsLast(Eager):
    """Stores weights and activations as ``(n, height, width, channels)``, which convolution kernels prefer."""

    name = "channels-last"
    summary = "PyTorch, float32, channels innermost in memory"
    channels_last = True

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Write the module with its weights in that order."""
        if subject.inputs.ndim not in CHANNELS_LAST:
            raise VariantError(
                f"the inputs have the shape {tuple(subject.inputs.shape)}: only images (n, c, h, w) and volumes "
                "(n, c, d, h, w) can have their channels last"
            )
        module, settings = self._prepared(subject.module)
        save_module(copied(module, subject.inputs, dtype=torch.float32, channels_last=True), folder)
        return {"dtype": "float32", "memory_format": "channels_last", **settings}

    def _prepared(self, module: nn.Module) -> tuple[nn.Module, Mapping[str, str]]:
        return module, {}


class ChannelsLastFused(ChannelsLast):
    """Folds each batch norm that follows a convolution into its weights.

    In eval mode a batch norm is a scale and a shift per channel, so folding changes only the rounding.
    """

    name = "channels-last-fused"
    summary = "PyTorch, float32, batch norms folded into convolutions, channels innermost"

    def _prepared(self, module: nn.Module) -> tuple[nn.Module, Mapping[str, str]]:
        with variant_errors("torch.fx cannot trace this model"):
            from torch.fx.experimental.optimization import fuse

            fused = fuse(module)
        norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        before, after = (sum(isinstance(layer, norms) for layer in each.modules()) for each in (module, fused))
        if before == after:
            raise VariantError("the model has no batch norm after a convolution to fold: use channels-last")
        return fused, {"batch_norms_folded": f"{before - after} of {before}"}


class HalfPrecision(Eager):
    """Runs with 16-bit weights, with channels innermost if the inputs have channels.

    Tensor Cores and the 16-bit convolutions of processors expect channels innermost.
    """

    channels_last = True

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Write the module with 16-bit weights, after running it once."""
        half = copied(subject.module, subject.inputs, dtype=self.dtype, channels_last=True)
        with variant_errors(f"the model does not run in {self.dtype}"):
            call = module_call(half.to(subject.device), dtype=self.dtype, channels_last=True)
            call(subject.inputs[:1].to(subject.device))
        save_module(half.cpu(), folder)
        order = {"memory_format": "channels_last"} if subject.inputs.ndim in CHANNELS_LAST else {}
        dtype = str(self.dtype).removeprefix("torch.")
        return {"dtype": dtype, **order, "arithmetic": self.arithmetic(subject.device)}

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
        if device.type == "cuda":
            with on_device(device):
                if not torch.cuda.is_bf16_supported(including_emulation=False):
                    return "this GPU has no bfloat16 arithmetic (Ampere and later have): use fp16"
        return None

    def arithmetic(self, device: torch.device) -> str:
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
