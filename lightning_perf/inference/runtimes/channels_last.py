"""PyTorch with channels innermost in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.torch_module import (
    channels_last_format,
    copied,
    load_module,
    module_call,
    save_module,
)
from lightning_perf.inference.subject import Subject

__all__ = ["ChannelsLast"]


class ChannelsLast:
    """Weights and activations as ``(n, height, width, channels)`` in memory, which convolution kernels prefer.

    The file is a pickle of the whole module, as `Eager`'s; threads are torch's own.
    """

    name = "channels-last"
    summary = "PyTorch, float32, channels innermost in memory"

    def missing(self, device: torch.device) -> str | None:  # noqa: ARG002
        """Nothing is."""
        return None

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
