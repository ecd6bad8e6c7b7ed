"""The place of a call in the user's program: the layer that runs, and the line of code."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import FrameType

import torch
from torch import nn

from lightning_perf.callbacks.lightning_compat import Module
from lightning_perf.callbacks.precision.fp32_layers import layer_name

_TRAINER = ("trainer/call.py", "trainer\\call.py")
"""Ends of the path of Lightning's module that calls all hooks."""

_LIBRARIES = ("torch", "lightning", "pytorch_lightning", "lightning_fabric", "lightning_perf", "torchmetrics")
_FOLDERS = (
    *tuple(f"{folder}/{library}/" for folder in {Path(torch.__file__).parents[1].as_posix()} for library in _LIBRARIES),
    f"{Path(__file__).parents[2].as_posix()}/",
)
"""Folders of libraries. The first frame outside of them is the user's."""


def layer_names(module: Module) -> dict[int, str]:
    """Return the names of a module's layers by their ``id``; the module's own name is empty."""
    return {id(layer): layer_name(name) for name, layer in module.named_modules()}


def user_place(names: Mapping[int, str]) -> tuple[str, str]:
    """Return the layer and the line of the innermost call that is under way.

    Returns:
        The layer's name, empty if no layer's method is under way, and ``file:line`` of the user's code, empty if the
        call does not come from there.
    """
    layer: str | None = None
    line = ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith(_TRAINER):
            break  # the frames above only called trainer.fit
        if layer is None and code.co_varnames[:1] == ("self",):
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module):
                layer = names.get(id(owner))
        if not line and _is_users(code.co_filename):
            line = f"{_short(code.co_filename)}:{frame.f_lineno}"
        if layer is not None and line:
            break
        frame = frame.f_back
    return layer or "", line


@cache
def _is_users(filename: str) -> bool:
    path = Path(filename).as_posix()
    return not path.startswith((*_FOLDERS, "<")) and not path.endswith(("/contextlib.py", "/functools.py"))


def _short(filename: str) -> str:
    path = Path(filename)
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return "/".join(path.parts[-2:])
