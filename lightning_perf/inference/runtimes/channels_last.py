"""Run PyTorch with the channels-last memory format, with and without folded batch norms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from lightning_perf.inference.errors import VariantError, variant_errors
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.runtimes.base import Call, Runtime
from lightning_perf.inference.runtimes.eager import channels_last_format, copied, load_module, module_call, save_module


class ChannelsLast(Runtime):
    """Stores weights and activations as ``(n, height, width, channels)`` in memory, which convolution kernels prefer.

    The file is a pickle of the whole module, like the file of `Eager`. The number of threads is torch's own.
    """

    name = "channels-last"
    summary = "PyTorch, float32, channels innermost in memory"

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Write the module with its weights in that order.

        Raises:
            VariantError: The inputs are neither images nor volumes.
        """
        require_channels(subject)
        save_module(copied(subject.module, subject.inputs, dtype=torch.float32, channels_last=True), folder)
        return {"dtype": "float32", "memory_format": "channels_last"}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Read the module."""
        return module_call(load_module(folder, device), channels_last=True)


def require_channels(subject: Subject) -> None:
    """Check that the inputs are images or volumes with channels."""
    if channels_last_format(subject.inputs) is None:
        raise VariantError(
            f"the inputs have the shape {tuple(subject.inputs.shape)}: only images (n, c, h, w) and volumes "
            "(n, c, d, h, w) can have their channels last"
        )


class ChannelsLastFused(ChannelsLast):
    """Folds each batch norm that follows a convolution into its weights, then runs like `ChannelsLast`.

    In eval mode a batch norm is a scale and a shift per channel, so folding changes only the rounding.
    """

    name = "channels-last-fused"
    summary = "PyTorch, float32, batch norms folded into convolutions, channels innermost"

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Fold and write the module."""
        require_channels(subject)
        with variant_errors("torch.fx cannot trace this model"):
            from torch.fx.experimental.optimization import fuse

            fused = fuse(subject.module)
        before, after = _batch_norms(subject.module), _batch_norms(fused)
        if before == after:
            raise VariantError("the model has no batch norm after a convolution to fold: use channels-last")
        save_module(copied(fused, subject.inputs, dtype=torch.float32, channels_last=True), folder)
        return {
            "dtype": "float32",
            "memory_format": "channels_last",
            "batch_norms_folded": f"{before - after} of {before}",
        }


def _batch_norms(module: nn.Module) -> int:
    return sum(isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)) for layer in module.modules())
