"""Export graphs and check calibration inputs, for several runtimes."""

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


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Disable gradients and leave inference mode: tensors made in inference mode cannot be traced."""
    with torch.inference_mode(False), torch.no_grad():  # in this order: the first one turns gradients on
        yield


def example_batch(inputs: Tensor) -> Tensor:
    """Return two inputs for tracing: torch.export would treat a batch of one as a constant ("0/1 specialization")."""
    return inputs[torch.arange(2, device=inputs.device) % len(inputs)]


def dynamic_batch() -> tuple[dict[int, object]]:
    """Return ``dynamic_shapes`` for `torch.export.export`: the first dimension of the one input may have any size."""
    return ({0: torch.export.Dim("batch")},)


def export_program(module: nn.Module, inputs: Tensor, *, dynamic: bool = True, strict: bool = False) -> ExportedProgram:
    """Export a model.

    Args:
        dynamic: Whether to export for any batch size, or only for the batch size of the inputs.

    Raises:
        VariantError: The Python code of the model depends on tensor values or on the batch size.
    """
    with variant_errors("torch.export cannot take this model"), tracing():
        if not dynamic:
            return torch.export.export(module, (inputs,), strict=strict)
        return torch.export.export(module, (example_batch(inputs),), dynamic_shapes=dynamic_batch(), strict=strict)


CALIBRATION_BATCH = 32
"""Inputs per batch. It limits memory and does not affect the ranges."""


def require_calibration(subject: Subject) -> None:
    """Check for calibration inputs."""
    if len(subject.calibration) == 0:
        raise VariantError("int8 needs real training inputs for calibration: give a LightningDataModule as --data")
