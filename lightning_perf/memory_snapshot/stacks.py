"""Describe a stack: the user's line, the module, and the phase of the training that allocated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from lightning_perf.memory_snapshot.snapshot import Frame

Phase: TypeAlias = Literal["forward", "backward", "optimizer", "other", "unknown"]

Purpose: TypeAlias = Literal["parameters", "optimizer_state", "inputs"]

_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages)/(?:torch|torchgen|functorch|triton|lightning|pytorch_lightning"
    r"|lightning_fabric|lightning_utilities|lightning_perf|einops|opt_einsum)/"
    r"|/torch/(?:nn|optim|utils|autograd|cuda|distributed|_dynamo|_inductor|_functorch|fx|amp|_tensor\.py|_ops\.py|functional\.py)"
    r"|/lib/python3\.\d+/(?!site-packages|dist-packages)|torchinductor|^<frozen "
    r"|^(?:[A-Za-z]:|/)/.*[Pp]ython.*/Lib/(?!site-packages/)"  # the standard library on Windows
)
_OPTIMIZER = re.compile(r"/torch/optim/(?!lr_scheduler|swa_utils)|/(?:bitsandbytes|torchao)/optim/")
_MODULE_CALL = re.compile(r"/torch/nn/modules/module\.py$")
_MODULE_FILE = re.compile(r"/torch/nn/modules/(?P<name>\w+)\.py$")
_AUTOGRAD = re.compile(r"/torch/autograd/(?:__init__|graph)\.py$")
_ENGINE_CALLS = ("_engine_run_backward", "grad")
_ENGINE = "torch::autograd::Engine::"
_NODE = re.compile(r"torch::autograd::(?:generated::)?(?P<name>\w+)::apply\(")
_KERNEL = re.compile(r"at::(?:native::|_ops::|meta::|redispatch::)+(?:\(anonymous namespace\)::)?(?P<name>\w+)")
_FORWARD_NAMES = ("forward", "training_step", "validation_step", "test_step", "predict_step")
_TRANSFER_NAMES = ("move_data_to_device", "batch_to", "transfer_batch_to_device", "pin_memory")

NO_LINE = "(no stack)"


class Site(Struct, frozen=True):
    """The facts that a stack shows about an allocation.

    Attributes:
        line: The innermost line outside of torch and Lightning, as ``folder/file.py:12 function``. Without one, the
            innermost line of Python or the operator of autograd.
        file: The whole path of that line; empty for compiled code.
        module: Class of the innermost module, or the file of ``torch.nn.modules`` that it is from; None if unknown.
        purpose: The use of the memory, if the stack alone shows it.
    """

    line: str
    file: str
    module: str | None
    phase: Phase
    purpose: Purpose | None


EMPTY_SITE = Site(NO_LINE, "", None, "unknown", None)
"""The site of an allocation without a stack."""


def name_line(line: str, module: str | None) -> str:
    """Return a line with the class of the module that it is from, if known."""
    return line if module is None else f"{line} [{module}]"


def describe_stack(stack: Sequence[Frame]) -> Site:
    """Describe an allocation from its stack."""
    if not stack:
        return EMPTY_SITE
    python = [frame for frame in stack if is_python(frame)]
    shown = next((frame for frame in python if not _LIBRARY.search(frame.file)), python[0] if python else None)
    return Site(
        line=_line(shown) if shown is not None else _compiled_line(stack),
        file=shown.file if shown is not None else "",
        module=_module(python),
        phase=_phase(stack, python),
        purpose=_purpose(python),
    )


def is_python(frame: Frame) -> bool:
    """Return whether a frame is of Python, and not of compiled code."""
    return frame.file.endswith((".py", ".pyx")) or frame.file.startswith("<")


def _line(frame: Frame) -> str:
    return f"{'/'.join(frame.file.rsplit('/', 2)[-2:])}:{frame.line} {frame.function}"


def _compiled_line(stack: Sequence[Frame]) -> str:
    """Name the node of autograd, or else the outermost operator, of a stack without Python."""
    for frame in stack:
        node = _NODE.search(frame.function)
        if node is not None and node["name"] not in ("Node", "PyNode"):
            return f"autograd {node['name']}"
    kernels = [found["name"] for frame in stack if (found := _KERNEL.search(frame.function)) is not None]
    return f"operator {kernels[-1]}" if kernels else NO_LINE


def _phase(stack: Sequence[Frame], python: Sequence[Frame]) -> Phase:
    """Return the phase.

    The innermost frame that belongs to one decides: a closure runs forward and backward inside of ``optimizer.step``.
    Forward inside of backward is a recomputation of activation checkpointing, and counts as backward.
    """
    inner: Phase = "other"
    for frame in python:
        if _OPTIMIZER.search(frame.file):
            if inner == "other":
                return "optimizer"
            continue
        function = frame.function.rpartition(".")[2]
        if function == "backward" or (function in _ENGINE_CALLS and _AUTOGRAD.search(frame.file)):
            return "backward"
        if function in _FORWARD_NAMES or ("call_impl" in function and _MODULE_CALL.search(frame.file)):
            inner = "forward"
    if any(_ENGINE in frame.function for frame in stack):
        return "backward"
    return inner


def _module(python: Sequence[Frame]) -> str | None:
    for position, frame in enumerate(python):
        owner, _, function = frame.function.rpartition(".")
        if function == "forward" and owner and "<locals>" not in owner:
            return owner.rpartition(".")[2]
        called = position + 1 < len(python) and _MODULE_CALL.search(python[position + 1].file)
        file = _MODULE_FILE.search(frame.file)
        if function == "forward" and called and file is not None:
            return f"nn.{file['name']}"
    return None


def _purpose(python: Sequence[Frame]) -> Purpose | None:
    for frame in python:
        function = frame.function.rpartition(".")[2]
        if _OPTIMIZER.search(frame.file):
            return "optimizer_state" if function == "_init_group" else None
        if function in _TRANSFER_NAMES:
            return "inputs"
        if function == "_apply" and _MODULE_CALL.search(frame.file):
            return "parameters"
        if function == "__init__" and (
            _MODULE_FILE.search(frame.file) or frame.file.endswith("/torch/nn/parameter.py")
        ):
            return "parameters"
        if "call_impl" in function:
            return None
    return None
