"""Turns the recorded inputs of an operator into arguments that it can be called with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.analysis.intervals import json_list
from lightning_perf.analysis.model.operators import OperatorCall

TYPES: dict[str, torch.dtype] = {
    "float": torch.float32,
    "double": torch.float64,
    "c10::Half": torch.float16,
    "c10::BFloat16": torch.bfloat16,
    "long int": torch.int64,
    "long": torch.int64,
    "long long": torch.int64,
    "int": torch.int32,
    "short": torch.int16,
    "short int": torch.int16,
    "signed char": torch.int8,
    "unsigned char": torch.uint8,
    "bool": torch.bool,
}
"""Types of inputs as the profiler writes them."""

TEXTS = {"padding": "same"}
"""Usual texts of arguments that are rarely left at their default."""

MOST_ELEMENTS = 2**33
"""Larger tensors are damaged or do not fit anyway."""


class NotCallableError(Exception):
    """A recorded call cannot be made again. The message says why."""


class TensorInfo(Struct, frozen=True):
    """A tensor without its values."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    gradient: bool = False

    @property
    def elements(self) -> int:
        """Elements of memory from the first to the last."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    @property
    def bytes(self) -> int:
        """Bytes of memory from the first element to the last."""
        return self.elements * self.dtype.itemsize

    def with_gradient(self, gradient: bool) -> TensorInfo:
        """Return the same tensor, with or without a gradient."""
        return replace(self, gradient=gradient and self.dtype.is_floating_point)


Argument: TypeAlias = Any
"""A `TensorInfo`, a list of them and of ``None``, or a value."""


class Bound(Struct, frozen=True):
    """An operator with the arguments of one recorded call.

    Attributes:
        name: Name of the operator without its namespace, e.g. ``conv2d``.
        overload: Name of its overload, e.g. ``default``.
        arguments: The arguments in order, tensors as `TensorInfo`.
        in_place: Whether it writes to its first argument.
        keywords: Names of the last arguments, which it takes by name only.
    """

    name: str
    overload: str
    arguments: tuple[Argument, ...]
    in_place: bool
    keywords: tuple[str, ...] = ()

    def call(self, arguments: Sequence[Any]) -> Any:
        """Call the operator."""
        split = len(arguments) - len(self.keywords)
        operator = getattr(getattr(torch.ops.aten, self.name), self.overload)
        return operator(*arguments[:split], **dict(zip(self.keywords, arguments[split:], strict=True)))


def bind(call: OperatorCall) -> Bound:
    """Find the overload of a recorded call and its arguments."""
    namespace, _, name = call.name.partition("::")
    if namespace != "aten" or not name:
        raise NotCallableError("it is no operator of PyTorch")
    types = json_list(call.types)
    shapes, strides, values = (
        (json_list(text) + [""] * len(types))[: len(types)] for text in (call.shapes, call.strides, call.values)
    )
    if not types:
        raise NotCallableError("its inputs were not recorded")
    for overload in _overloads(name):
        schema = overload._schema
        named = [one.alias_info for one in schema.arguments if one.kwarg_only]  # an overload that writes to an output
        if len(schema.arguments) != len(types) or any(alias is not None and alias.is_write for alias in named):
            continue
        try:
            arguments = tuple(
                _argument(argument, *recorded)
                for argument, *recorded in zip(schema.arguments, types, shapes, strides, values, strict=True)
            )
        except NotCallableError:
            continue
        first = schema.arguments[0].alias_info
        keywords = tuple(argument.name for argument in schema.arguments if argument.kwarg_only)
        return Bound(name, overload._overloadname, arguments, first is not None and first.is_write, keywords)
    raise NotCallableError("no overload takes its recorded inputs")


@lru_cache(maxsize=4096)
def _overloads(name: str) -> tuple[Any, ...]:
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        raise NotCallableError("this version of PyTorch does not have it")
    return tuple(getattr(packet, overload) for overload in packet.overloads())


def _argument(argument: Any, kind: Any, shape: Any, strides: Any, value: Any) -> Argument:
    wanted = str(argument.type)
    optional = wanted.startswith("Optional[")
    inner = wanted.removeprefix("Optional[").removesuffix("]") if optional else wanted
    if inner == "Tensor":
        if kind == "" and optional:
            return None
        if kind not in TYPES:
            raise NotCallableError(f"an input of type {kind!r}")
        return _tensor(TYPES[kind], shape, strides)
    if inner in ("List[Tensor]", "List[Optional[Tensor]]"):
        if kind != "TensorList" or not isinstance(shape, list) or not isinstance(strides, list):
            raise NotCallableError("a list of tensors without shapes")
        return [_tensor(torch.float32, one, order) for one, order in zip(shape, strides, strict=True)]
    if kind in TYPES or kind == "TensorList":
        raise NotCallableError("a tensor where a value belongs")
    if value != "" and value is not None:
        return _value(inner, str(value))
    if inner in ("Generator", "Device") or optional:
        return None
    return _unrecorded_text(argument, inner)


def _unrecorded_text(argument: Any, inner: str) -> Argument:
    """Return the usual text of an argument. The profiler leaves out texts."""
    if inner == "str" and argument.name in TEXTS:
        return TEXTS[argument.name]
    if inner == "str" and argument.has_default_value():
        return argument.default_value
    raise NotCallableError("a value that was not recorded")


def _tensor(dtype: torch.dtype, shape: Any, strides: Any) -> TensorInfo:
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise NotCallableError("an input without a shape")
    if (
        not isinstance(strides, list)
        or len(strides) != len(shape)
        or not all(type(s) is int and s >= 0 for s in strides)
    ):
        strides = _contiguous(shape)
    info = TensorInfo(dtype, tuple(shape), tuple(strides))
    if info.elements > MOST_ELEMENTS:
        raise NotCallableError("an input that is too large")
    return info


def _contiguous(shape: list[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return strides[::-1]


def _value(wanted: str, text: str) -> Any:
    if wanted == "str":
        return text
    if text.startswith("[") and text.endswith("]"):
        if not wanted.startswith("List["):
            raise NotCallableError("a list where a value belongs")
        inner = wanted[len("List[") : -1]
        return [_value(inner, part.strip()) for part in text[1:-1].split(",") if part.strip()]
    if wanted.startswith("List["):
        raise NotCallableError("a value where a list belongs")
    if text in ("True", "False"):
        return text == "True"
    try:
        number = float(text)
        is_whole = number.is_integer() and not set(text) & set(".eEn")
        if wanted == "int":
            return int(text)
        if wanted == "bool":
            return bool(number)
        return int(text) if wanted == "number" and is_whole else number
    except (ValueError, OverflowError) as error:
        raise NotCallableError(f"a value {text!r}") from error
