"""Channels-last memory format, with and without fused convolution and batch norm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from lightning_perf.inference.errors import VariantError, variant_errors
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.runtimes.base import Call, Runtime
from lightning_perf.inference.runtimes.eager import channels_last_format, copied, load_module, module_call, save_module

__all__ = [
    "ChannelsLast",
    "ChannelsLastFused",
]


class ChannelsLast(Runtime):
    """Weights and activations as ``(n, height, width, channels)`` in memory, which convolution kernels prefer.

    The file is a pickle of the whole module, as `Eager`'s; threads are torch's own.
    """

    name = "channels-last"
    summary = "PyTorch, float32, channels innermost in memory"

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Write the module with its weights in that order.

        Raises:
            VariantError: The inputs are neither pictures nor volumes.
        """
        require_channels(subject)
        save_module(copied(subject.module, subject.inputs, dtype=torch.float32, channels_last=True), folder)
        return {"dtype": "float32", "memory_format": "channels_last"}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Read the module."""
        return module_call(load_module(folder, device), channels_last=True)


def require_channels(subject: Subject) -> None:
    """Make sure that the inputs have channels and places.

    Raises:
        VariantError: They have not.
    """
    if channels_last_format(subject.inputs) is None:
        raise VariantError(
            f"the inputs are {tuple(subject.inputs.shape)}: only pictures (n, c, h, w) and volumes (n, c, d, h, w) "
            "have channels last"
        )


class ChannelsLastFused(ChannelsLast):
    """Each batch norm that follows a convolution becomes part of its weights, then as `ChannelsLast`.

    In eval mode a batch norm is a scale and a shift for each channel, so folding changes nothing but rounding.
    """

    name = "channels-last-fused"
    summary = "PyTorch, float32, batch norms folded into convolutions, channels innermost"

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Fold and write the module.

        Raises:
            VariantError: The inputs have no channels, torch.fx cannot trace the model, or there is nothing to fold.
        """
        require_channels(subject)
        with variant_errors("torch.fx cannot trace this model"):
            from torch.fx.experimental.optimization import fuse

            fused = fuse(subject.module)
        before, after = _batch_norms(subject.module), _batch_norms(fused)
        if before == after:
            raise VariantError("no batch norm follows a convolution: use channels-last")
        save_module(copied(fused, subject.inputs, dtype=torch.float32, channels_last=True), folder)
        return {
            "dtype": "float32",
            "memory_format": "channels_last",
            "batch_norms_folded": f"{before - after} of {before}",
        }


def _batch_norms(module: nn.Module) -> int:
    return sum(isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)) for layer in module.modules())
