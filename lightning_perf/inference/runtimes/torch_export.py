"""Exported graphs and calibration inputs, which several runtimes build on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lightning_perf.inference.errors import VariantError, variant_errors
from lightning_perf.inference.model.subject import Subject

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = [
    "CALIBRATION_BATCH",
    "dynamic_batch",
    "example_batch",
    "export_program",
    "require_calibration",
    "tracing",
]


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Neither gradients nor inference mode, in which the caller may be: tensors made in that mode cannot be traced."""
    with torch.inference_mode(False), torch.no_grad():  # in this order: the first one turns gradients on
        yield


def example_batch(inputs: Tensor) -> Tensor:
    """Two inputs to trace with: a batch of one would be taken for a constant (torch.export, "0/1 specialization")."""
    return inputs[torch.arange(2, device=inputs.device) % len(inputs)]


def dynamic_batch() -> tuple[dict[int, object]]:
    """Say that the first dimension of the one input may have any size; ``dynamic_shapes`` of `torch.export.export`."""
    return ({0: torch.export.Dim("batch")},)


def export_program(module: nn.Module, inputs: Tensor, *, dynamic: bool = True, strict: bool = False) -> ExportedProgram:
    """Export a model.

    Args:
        module: The model, on the device of the inputs.
        inputs: Real inputs, ``(n, …)``.
        dynamic: Whether for any batch size, or for that of the inputs alone.
        strict: Whether to trace by bytecode (TorchDynamo) instead of by running it.

    Raises:
        VariantError: Its Python depends on the numbers that flow through it or on the batch size.
    """
    with variant_errors("torch.export cannot take this model"), tracing():
        if not dynamic:
            return torch.export.export(module, (inputs,), strict=strict)
        return torch.export.export(module, (example_batch(inputs),), dynamic_shapes=dynamic_batch(), strict=strict)


CALIBRATION_BATCH = 32
"""Inputs at a time: bounds memory, and changes no range."""


def require_calibration(subject: Subject) -> None:
    """Make sure that there is something to calibrate with.

    Raises:
        VariantError: There is nothing.
    """
    if len(subject.calibration) == 0:
        raise VariantError("int8 needs real training inputs to calibrate with, and there are none")
