"""The model that is measured, with its inputs and its device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import InferenceError


@dataclass(frozen=True)
class Subject:
    """The model under study, with its inputs and its device.

    Attributes:
        module: The model: float32, in eval mode, on the CPU. Never change it in place; change a deep copy.
        inputs: A batch of real inputs for the model, float32 on the CPU, ``(n, …)``.
        calibration: Real inputs for int8 calibration, from the training side of the split, ``(m, …)``.
        device: The device that variants run on.
        threads: CPU threads that a variant may use.
    """

    module: nn.Module
    inputs: Tensor
    calibration: Tensor
    device: torch.device
    threads: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch dimension."""
        return tuple(self.inputs.shape[1:])


def shape_text(shape: tuple[int, ...]) -> str:
    """Format the shape of a batch of any size, for messages.

    Example:
        >>> shape_text((3, 224, 224))
        '(n, 3, 224, 224)'
    """
    return f"({', '.join(map(str, ('n', *shape)))})"


SAME = 1e-3
"""Largest allowed difference of two calls with the same inputs, as a share of the largest output. Sums over several
threads vary by less; randomness changes outputs by much more."""


def check_subject(subject: Subject) -> Tensor:
    """Run the original twice, check that it can be studied, and return its outputs, ``(n, …)``."""
    module, name = subject.module, type(subject.module).__name__
    before = subject.inputs.clone()
    try:
        with torch.inference_mode():
            outputs = module(subject.inputs.clone())
            given = subject.inputs.clone()
            again = module(given)
    except Exception as error:
        raise InferenceError(
            f"{name} does not take inputs of shape {shape_text(subject.input_shape)} and type {subject.inputs.dtype} "
            f"({reason_of(error)}). Check the data, or --shape. Variants have one float32 input: wrap a model with "
            "several inputs, or with token IDs, in a module that derives them from one such tensor."
        ) from error
    if not isinstance(outputs, Tensor):
        raise InferenceError(
            f"{name} returns a {type(outputs).__name__}, not one tensor. Wrap it in a module that returns its logits."
        )
    if outputs.ndim == 0 or len(outputs) != len(before):
        raise InferenceError(
            f"{name} returns the shape {tuple(outputs.shape)} for a batch of {len(before)}. Return one row per input."
        )
    if not torch.isfinite(outputs).all():
        raise InferenceError(f"{name} returns NaN or infinite outputs for these inputs. Check weights and data.")
    if not torch.equal(given, before):
        raise InferenceError(
            f"{name} changes its inputs in place, so a second call would see other values. "
            "Use operations that return a new tensor, e.g. div instead of div_."
        )
    if float((again - outputs).abs().max()) > SAME * float(outputs.abs().max()):
        raise InferenceError(
            f"{name} returns other outputs for the same inputs, in eval mode, so nothing can be compared with it. "
            "Remove random numbers from its forward, e.g. a dropout without training=self.training."
        )
    if outputs.dtype != torch.float32:
        raise InferenceError(f"{name} returns {outputs.dtype}. Convert the model to float32.")
    return outputs


def choose_device(name: str) -> str:
    """Return the device for the value of ``--device``: ``auto`` is ``cuda`` if PyTorch sees a GPU, else ``cpu``."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def usable_device(name: torch.device | str) -> torch.device:
    """Return the device with this name, after checking that it is available.

    Args:
        name: ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        InferenceError: The name is not valid, or PyTorch cannot see the device.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InferenceError(f"device {name}: PyTorch knows no such device. Use cpu, cuda or cuda:N.") from error
    if device.type not in ("cpu", "cuda"):
        raise InferenceError(f"device {device}: models can be measured on cpu or cuda only.")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InferenceError(f"device {device}: PyTorch sees no GPU here. Use cpu.")
        if (device.index or 0) >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise InferenceError(f"device {device}: PyTorch sees no GPU with this number. Use cuda:0 to cuda:{last}.")
    return device


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current device: events, compilers and engines use it, wherever the tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def finish(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def cpu_threads(number: int) -> Iterator[None]:
    """Let torch use this many CPU threads within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
