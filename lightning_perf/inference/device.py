"""The device that models run on: read from its name, and made the one that CUDA means."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from lightning_perf.inference.errors import InferenceError

__all__ = ["on_device", "usable_device"]


def usable_device(name: torch.device | str) -> torch.device:
    """Read a device's name and see that it is there.

    Args:
        name: ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        InferenceError: PyTorch knows no such device, or does not see it here.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InferenceError(f"device {name}: PyTorch knows no such device. Use cpu, cuda or cuda:N.") from error
    if device.type not in ("cpu", "cuda"):
        raise InferenceError(f"device {device}: models are measured on cpu or cuda.")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InferenceError(f"device {device}: PyTorch sees no GPU here. Use cpu.")
        if (device.index or 0) >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise InferenceError(f"device {device}: there is none of this number. Use cuda:0 to cuda:{last}.")
    return device


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one: events, compilers and engines take that, whatever device the tensors are on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
