"""Load the model that the command line names, as ``package.module:name`` or as a checkpoint."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import InferenceError
from lightning_perf.lazy_imports import find_object


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
