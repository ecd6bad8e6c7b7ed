"""Reads the conditions that torch reports for a recompilation: what changed, where, and which change prevents it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Cause: TypeAlias = Literal["shape", "value", "tensor", "object", "mode", "other"]
"""The kind of change between two calls.

- ``shape``: the size of an input.
- ``value``: a number, a string or a container of Python.
- ``tensor``: the type, the strides or another property of an input.
- ``object``: another object or type.
- ``mode``: training or validation, autocast, gradients on or off.
- ``other``: anything else.
"""

_PRECEDENCE: tuple[Cause, ...] = ("shape", "value", "tensor", "object", "other", "mode")
"""torch lists one failed condition per compiled version. Versions for validation or without gradients always fail in
the mode, so a reason of another kind says more."""

_VERSION = re.compile(r"^\d+/\d+(?:_\d+)?: ")
_SIZE = re.compile(
    r"tensor '(?P<name>[^']*)' (?P<what>size|rank) mismatch(?: at index (?P<index>\d+))?"
    r"\.? expected (?P<before>[^,]*),? actual (?P<after>\S+)"
)
_TENSOR = re.compile(r"tensor '(?P<name>[^']*)' (?P<what>[\w ]+?) mismatch")
_SYMBOL = re.compile(r"\b(?:Eq|Ne|Mod)\(|\.size\(\)|\.stride\(\)|\bs\d+ ?[=<>!]|tensor\.size")
_MODE = ("GLOBAL_STATE", "grad_mode", "autocast", "inference_mode", "torch_function", ".training ")
_OBJECT = ("___check_obj_id", "___check_type_id", "___check_current_backend", " is ", "BACKEND_MATCH")
_VALUE = ("==", "!=", "len(", "___dict_contains", " in ", "___key_to_id", "KeyError", "dict_keys")
_NO_MODE = ("requires_grad", "dispatch key set")
"""Properties of a tensor that differ between training and validation, and between the first layer and the others."""


@dataclass(frozen=True)
class FailedGuard:
    """A condition that failed, so that a function was compiled again.

    Attributes:
        text: The condition in torch's words, without the version that it belongs to.
        code: The user's line that the condition comes from; empty if torch does not name it.
        name: The input of another shape; empty for any other cause.
        dimension: The dimension that changed; None for any other cause.
    """

    cause: Cause
    text: str
    code: str = ""
    name: str = ""
    dimension: int | None = None


def failed_guard(reasons: Sequence[str]) -> FailedGuard:
    """Choose the condition that explains a recompilation best. The latest version's reason comes first."""
    guards = [read_guard(reason) for reason in reasons]
    return min(guards, key=lambda guard: _PRECEDENCE.index(guard.cause), default=FailedGuard("other", "not reported"))


def read_guard(reason: str) -> FailedGuard:
    """Read one of torch's reasons."""
    text = _VERSION.sub("", reason.strip())
    condition, _, rest = text.partition(" # ")
    code = rest.partition(" # ")[0].strip()
    if code.startswith("("):  # a place in torch instead of a line of the program
        code = ""
    condition = condition.partition(" (HINT:")[0].strip()
    size = _SIZE.match(condition)
    if size is not None:
        index = size["index"]
        return FailedGuard("shape", condition, code, size["name"], int(index) if index else None)
    return FailedGuard(_cause(condition), condition, code)


def _cause(condition: str) -> Cause:
    tensor = _TENSOR.match(condition)
    if tensor is not None:
        return "mode" if any(word in tensor["what"] for word in _NO_MODE) else "tensor"
    if any(word in condition for word in _MODE):
        return "mode"
    if _SYMBOL.search(condition):
        return "shape"
    if any(word in condition for word in _OBJECT):
        return "object"
    if any(word in condition for word in _VALUE):
        return "value"
    return "other"
