"""The model that is measured, with its inputs and its device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_perf.inference.errors import InferenceError

__all__ = [
    "Subject",
    "cpu_threads",
    "on_device",
    "shape_text",
    "usable_device",
]


@dataclass(frozen=True)
class Subject:
    """What variants are made of.

    Attributes:
        module: The model: float32, in eval mode, on the CPU. Nobody changes it; who needs to, deep-copies it.
        inputs: A batch of real inputs as the model takes them, float32 on the CPU, ``(n, …)``.
        calibration: Real inputs to calibrate int8 with, from the training side of the split, ``(m, …)``.
        device: Where variants run.
        threads: Threads of the CPU that a variant may use.
    """

    module: nn.Module
    inputs: Tensor
    calibration: Tensor
    device: torch.device
    threads: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch."""
        return tuple(self.inputs.shape[1:])


def shape_text(shape: tuple[int, ...]) -> str:
    """Shape of a batch of any size, for messages.

    Args:
        shape: Without the batch.

    Example:
        >>> shape_text((3, 224, 224))
        '(n, 3, 224, 224)'
    """
    return f"({', '.join(map(str, ('n', *shape)))})"


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


@contextmanager
def cpu_threads(number: int) -> Iterator[None]:
    """Have torch use this many CPU threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
