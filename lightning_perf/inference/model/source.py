"""Find the model and its data by what the command line names: ``package.module:name`` and checkpoints."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightning_perf.inference.errors import InferenceError, reason_of

__all__ = ["find_object", "load_model"]

_FORM = "Name it as package.module:name"


def find_object(text: str, option: str) -> Any:
    """Import what ``package.module:name`` names; the current folder is looked in, too.

    Args:
        text: The name.
        option: The option that it stands in, for messages.

    Raises:
        InferenceError: There is no such module, or nothing of this name in it.
    """
    module_name, colon, name = text.partition(":")
    if not colon or not module_name or not name:
        raise InferenceError(f"{option} {text}: not understood. {_FORM}.{_file_hint(text)}")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise InferenceError(f"{option} {text}: importing {module_name} fails ({reason_of(error)}).") from error
        raise InferenceError(
            f"{option} {text}: there is no module {error.name}. {_FORM}, and run where it can be imported."
            f"{_file_hint(text)}"
        ) from error
    except Exception as error:  # the user's module runs at import
        raise InferenceError(f"{option} {text}: importing {module_name} fails ({reason_of(error)}).") from error
    for part in name.split("."):
        if not hasattr(found, part):
            public = [key for key in vars(found) if not key.startswith("_")]
            raise InferenceError(f"{option} {text}: {module_name} has no {part}. It has {', '.join(public[:20])}.")
        found = getattr(found, part)
    return found


def _file_hint(text: str) -> str:
    """How to name what is in a Python file, when a file was named."""
    file, _, name = text.partition(":")
    if not file.endswith(".py"):
        return ""
    return f" For a file: {Path(file).stem}:{name or 'NAME'}, run in {Path(file).resolve().parent}."


def load_model(target: str, module: str | None) -> tuple[nn.Module, str]:
    """The model that the command line names.

    Args:
        target: ``package.module:name`` of a module, or of a function or class that makes one without arguments; or a
            checkpoint that Lightning wrote.
        module: For a checkpoint, ``package.module:Class`` of its LightningModule.

    Returns:
        The model and its name.

    Raises:
        InferenceError: It cannot be made or loaded; the message says why.
    """
    path = Path(target)
    if path.suffix == ".ckpt" or (path.is_file() and path.suffix != ".py"):
        return _from_checkpoint(path, module)
    if module is not None:
        raise InferenceError(f"--module {module}: only with a checkpoint, and {target} is none.")
    if os.sep in target and ":" not in target and path.suffix != ".py":
        raise InferenceError(f"{target}: there is no such checkpoint, and a model is named as package.module:name.")
    found = find_object(target, "MODEL")
    made = found if isinstance(found, nn.Module) else _made(found, target)
    if not isinstance(made, nn.Module):
        raise InferenceError(f"MODEL {target}: gives a {type(made).__name__}, not a torch.nn.Module.")
    return made, target.partition(":")[2]


def _made(factory: Any, text: str) -> Any:
    if not callable(factory):
        return factory
    try:
        return factory()
    except Exception as error:
        needed = _needed_arguments(factory)
        hint = f" It needs {needed}: write a function without arguments that makes it." if needed else ""
        raise InferenceError(f"{text}: making it fails ({reason_of(error)}).{hint}") from error


def _needed_arguments(factory: Any) -> str:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return ""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return ", ".join(p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind not in variable)


def _from_checkpoint(path: Path, module: str | None) -> tuple[nn.Module, str]:
    if not path.is_file():
        raise InferenceError(f"{path}: there is no such checkpoint.")
    if module is None:
        raise InferenceError(f"{path}: a checkpoint holds weights, not the model. Give --module package.module:Class.")
    kind = find_object(module, "--module")
    if not (isinstance(kind, type) and hasattr(kind, "load_from_checkpoint")):
        raise InferenceError(f"--module {module}: is no LightningModule class.")
    try:
        return kind.load_from_checkpoint(path, map_location="cpu"), kind.__name__
    except Exception as error:
        raise InferenceError(f"{path}: {_checkpoint_problem(path, module, error)}") from error


def _checkpoint_problem(path: Path, module: str, error: Exception) -> str:
    text = str(error)
    if isinstance(error, RuntimeError) and "Error(s) in loading state_dict" in text:
        return f"is the checkpoint of another model than {module} ({_state_problem(text)})."
    try:
        torch.load(path, map_location="cpu", weights_only=True)
        readable = True
    except Exception as problem:
        readable = "weights_only" in str(problem).lower() or "WeightsUnpickler" in str(problem)
    if not readable:
        return f"is damaged or no checkpoint ({reason_of(error)})."
    if isinstance(error, TypeError):
        return (
            f"{module} cannot be made from it ({reason_of(error)}). Call save_hyperparameters() in its __init__, "
            "or give a function that loads the checkpoint as MODEL."
        )
    return f"cannot be loaded as {module} ({reason_of(error)})."


def _state_problem(text: str) -> str:
    """The first of the differences that torch lists, in a line."""
    lines = [" ".join(line.split()) for line in text.splitlines()[1:] if line.strip()]
    first = lines[0] if lines else text
    return first if len(first) <= 200 else first[:199] + "…"
