"""The model that is measured, with its inputs and its device."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor, nn

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import InferenceError
from lightning_perf.lazy_imports import find_object


class Subject(Struct, frozen=True):
    """The model under study, with its inputs and its device.

    Attributes:
        module: The model: float32, in eval mode, on the CPU. Never change it in place; change a deep copy.
        inputs: A batch of real inputs for the model, float32 on the CPU, ``(n, …)``.
        calibration: Real inputs for int8 calibration, from the training side of the split, ``(m, …)``.
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


def load_model(target: str, module: str | None) -> tuple[nn.Module, str]:
    """Load the model that the command line names.

    Args:
        target: A Lightning checkpoint, or ``package.module:name`` of a module, or of a function or class that makes one
            without arguments.
    """
    path = Path(target)
    if path.suffix == ".ckpt" or (path.is_file() and path.suffix != ".py"):
        return _from_checkpoint(path, module)
    if module is not None:
        raise InferenceError(
            f"--module {module}: this option needs a checkpoint, but {target} is not one. Leave out --module."
        )
    if os.sep in target and ":" not in target and path.suffix != ".py":
        raise InferenceError(f"{target}: no such checkpoint. Give the path of a .ckpt file, or package.module:name.")
    found = find_object(target, "MODEL")
    made = found if isinstance(found, nn.Module) else _made(found, target)
    if not isinstance(made, nn.Module):
        raise InferenceError(
            f"MODEL {target} is a {type(made).__name__}. Name a torch.nn.Module, or a function that returns one."
        )
    return made, target.partition(":")[2]


def _made(factory: Any, text: str) -> Any:
    if not callable(factory):
        return factory
    try:
        return factory()
    except Exception as error:
        needed = _needed_arguments(factory)
        hint = f" It needs {needed}: write a function without arguments that returns the model." if needed else ""
        raise InferenceError(f"{text}: calling it failed ({reason_of(error)}).{hint}") from error


def _needed_arguments(factory: Any) -> str:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return ""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return ", ".join(p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind not in variable)


def _from_checkpoint(path: Path, module: str | None) -> tuple[nn.Module, str]:
    if not path.is_file():
        raise InferenceError(f"{path}: no such checkpoint. Check the path.")
    if module is None:
        raise InferenceError(f"{path}: a checkpoint holds weights, not the model. Add --module package.module:Class.")
    kind = find_object(module, "--module")
    if not (isinstance(kind, type) and hasattr(kind, "load_from_checkpoint")):
        raise InferenceError(f"--module {module}: not a LightningModule class. Name the class of the checkpoint.")
    try:
        return kind.load_from_checkpoint(path, map_location="cpu"), kind.__name__
    except Exception as error:
        raise InferenceError(f"{path}: {_checkpoint_problem(path, module, error)}") from error


def _checkpoint_problem(path: Path, module: str, error: Exception) -> str:
    text = str(error)
    if isinstance(error, RuntimeError) and "Error(s) in loading state_dict" in text:
        return f"this checkpoint does not belong to {module} ({_state_problem(text)})."
    try:
        torch.load(path, map_location="cpu", weights_only=True)
        readable = True
    except Exception as problem:
        readable = "weights_only" in str(problem).lower() or "WeightsUnpickler" in str(problem)
    if not readable:
        return f"the file is damaged or not a checkpoint ({reason_of(error)})."
    if isinstance(error, TypeError):
        return (
            f"{module} cannot be built from it ({reason_of(error)}). Call save_hyperparameters() in its __init__, "
            "or give a function that loads the checkpoint as MODEL."
        )
    return f"it cannot be loaded as {module} ({reason_of(error)})."


def _state_problem(text: str) -> str:
    """Return the first difference that torch lists, on one line."""
    lines = [" ".join(line.split()) for line in text.splitlines()[1:] if line.strip()]
    first = lines[0] if lines else text
    return first if len(first) <= 200 else first[:199] + "…"
