"""Eager PyTorch, and the base for runtimes that call a `torch.nn.Module`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from lightning_perf.inference.errors import VariantError, reason_of, variant_errors
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.runtimes.base import Call, Runtime

__all__ = [
    "MODULE_FILE",
    "Eager",
    "channels_last_format",
    "copied",
    "load_module",
    "module_call",
    "save_module",
]


MODULE_FILE = "module.pt"


def save_module(module: nn.Module, folder: Path) -> None:
    """Write the whole module: its class by name, its weights by value, in their memory format.

    The weights alone would not do: pruned and fused models have shapes and layers that no constructor makes.

    Raises:
        VariantError: It cannot be pickled.
    """
    try:
        torch.save(module, folder / MODULE_FILE)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise VariantError(
            f"the model cannot be pickled: {reason_of(error)}. Define its classes and functions at the top of a module"
        ) from error


def load_module(folder: Path, device: torch.device) -> nn.Module:
    """Read what `save_module` wrote. The file is a pickle: reading one runs code of whoever wrote it.

    Args:
        folder: Where it is.
        device: Where its weights go.

    Raises:
        VariantError: It cannot be read here, as when the module that defines its class is not found.
    """
    try:
        module = torch.load(folder / MODULE_FILE, map_location=device, weights_only=False)
    except (ImportError, AttributeError) as error:
        raise VariantError(
            f"the model's class cannot be imported: {reason_of(error)}. Put its file on PYTHONPATH, with the class at "
            "its top level"
        ) from error
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise VariantError(f"{folder / MODULE_FILE} cannot be read: {reason_of(error)}") from error
    if not isinstance(module, nn.Module):
        raise VariantError(f"{folder / MODULE_FILE} holds a {type(module).__name__}, not a module")
    return module.eval()


def module_call(
    function: Callable[[Tensor], Tensor], *, dtype: torch.dtype = torch.float32, channels_last: bool = False
) -> Call:
    """Make a call of a module: no gradients, floats in and out.

    Args:
        function: The module, or what it was compiled to.
        dtype: What it computes in.
        channels_last: Whether it wants pictures and volumes with their channels innermost in memory.
    """

    def call(inputs: Tensor) -> Tensor:
        with torch.inference_mode():
            memory_format = channels_last_format(inputs) if channels_last else None
            if memory_format is None:
                memory_format = torch.contiguous_format
            outputs = function(inputs.to(dtype=dtype, memory_format=memory_format))
            if not isinstance(outputs, Tensor):
                raise VariantError(f"the model gives a {type(outputs).__name__}; runtimes need one tensor")
            return outputs.float()

    return call


def channels_last_format(inputs: Tensor) -> torch.memory_format | None:
    """The format that keeps channels innermost for such inputs, or None when they are no pictures or volumes.

    Args:
        inputs: ``(n, channels, height, width)`` or ``(n, channels, depth, height, width)``.
    """
    return {4: torch.channels_last, 5: torch.channels_last_3d}.get(inputs.ndim)


def copied(module: nn.Module, inputs: Tensor, *, dtype: torch.dtype, channels_last: bool) -> nn.Module:
    """Make a copy in another type or memory format.

    Args:
        module: The module; it is left as it is.
        inputs: What it takes: only pictures and volumes have channels last.
        dtype: Type of the copy's floats.
        channels_last: Whether to store its weights with channels innermost.

    Raises:
        VariantError: It cannot be copied.
    """
    with variant_errors("the model cannot be copied"):
        twin = copy.deepcopy(module).to(dtype=dtype)
        memory_format = channels_last_format(inputs) if channels_last else None
        return twin if memory_format is None else twin.to(memory_format=memory_format)


class Eager(Runtime):
    """The module itself in float32, operator by operator.

    The file is a pickle of the whole module: loading it runs code of whoever wrote it, and needs the model's class.
    The number of CPU threads is torch's own for the process: `torch.set_num_threads`.
    """

    name = "eager"
    summary = "PyTorch as it is, float32"

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Write the module."""
        save_module(subject.module, folder)
        return {"dtype": "float32"}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Read the module."""
        return module_call(load_module(folder, device))
