"""Run eager PyTorch, with helpers for all runtimes that call a `torch.nn.Module`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import VariantError, variant_errors
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.runtimes.base import Call, Runtime

MODULE_FILE = "module.pt"


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

    def call(inputs: Tensor) -> Tensor:
        with torch.inference_mode():
            memory_format = channels_last_format(inputs) if channels_last else None
            if memory_format is None:
                memory_format = torch.contiguous_format
            outputs = function(inputs.to(dtype=dtype, memory_format=memory_format))
            if not isinstance(outputs, Tensor):
                raise VariantError(f"the model returns a {type(outputs).__name__}, but runtimes need one tensor")
            return outputs.float()

    return call


def channels_last_format(inputs: Tensor) -> torch.memory_format | None:
    """Return the memory format with channels innermost for these inputs; None unless they are images or volumes.

    Args:
        inputs: ``(n, channels, height, width)`` or ``(n, channels, depth, height, width)``.
    """
    return {4: torch.channels_last, 5: torch.channels_last_3d}.get(inputs.ndim)


def copied(module: nn.Module, inputs: Tensor, *, dtype: torch.dtype, channels_last: bool) -> nn.Module:
    """Copy a module with another type or memory format.

    Args:
        inputs: Inputs of the module; only images and volumes have channels.
    """
    with variant_errors("the model cannot be copied"):
        twin = copy.deepcopy(module).to(dtype=dtype)
        memory_format = channels_last_format(inputs) if channels_last else None
        return twin if memory_format is None else twin.to(memory_format=memory_format)


class Eager(Runtime):
    """Runs the module itself in float32, operator by operator.

    The file is a pickle of the whole module: loading it runs code from its author and needs the model's class. The
    number of CPU threads is torch's own for the process: `torch.set_num_threads`.
    """

    name = "eager"
    summary = "eager PyTorch, float32"

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Write the module."""
        save_module(subject.module, folder)
        return {"dtype": "float32"}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Read the module."""
        return module_call(load_module(folder, device))
