"""Looks into objects of a program without running their code.

A batch or a data set may be any object. To read it may draw random numbers, load files, or never end. So nothing here
calls a property, ``__getitem__``, ``__iter__``, ``__len__`` or ``__repr__`` of a class that is not Python's, NumPy's or
torch's own. Containers are read by the methods of their built-in base class, other objects by their stored attributes.
"""

from __future__ import annotations

import sys
import types
from collections import UserDict, UserList, deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

PLAIN = (str, bytes, int, float, bool, type(None))
"""Types that hold no other objects."""

_WITHOUT_CONTENT = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
)
"""Objects with attributes that are a program and not its data."""


_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)


def is_tensor(value: object) -> bool:
    """Return whether an object is a tensor. Does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(type(value), torch.Tensor)


def is_array(value: object) -> bool:
    """Return whether an object is a tensor or an array of NumPy."""
    return issubclass(type(value), np.ndarray) or is_tensor(value)


def attributes(value: object) -> dict[str, Any]:
    """Return the attributes that an object stores, in the order in which they were set; the slots of a dataclass, too.

    Example:
        >>> from types import SimpleNamespace
        >>> attributes(SimpleNamespace(x=1)), attributes(3), attributes(int)
        ({'x': 1}, {}, {})
    """
    kind = type(value)
    if issubclass(kind, _WITHOUT_CONTENT):
        return {}
    found: dict[str, Any] = {}
    stored = next((vars(base)["__dict__"] for base in kind.__mro__ if "__dict__" in vars(base)), None)
    if isinstance(stored, _DESCRIPTORS):  # anything else is a property of the class
        own = stored.__get__(value)
        found = dict.copy(own) if issubclass(type(own), dict) else {}
    for name in vars(kind).get("__dataclass_fields__", ()):
        slot = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
        if isinstance(slot, types.MemberDescriptorType):
            try:
                found[name] = slot.__get__(value)
            except AttributeError:  # not set
                continue
    return found


def size(value: object) -> int | None:
    """Return the number of parts of a container, without making a copy; None for another object."""
    kind = type(value)
    for base in (dict, list, tuple, deque):
        if issubclass(kind, base):
            return int(base.__len__(value))  # type: ignore[arg-type]
    inner = _wrapped(value)
    return None if inner is None else size(inner)


def parts(value: object) -> Iterator[tuple[Any, Any]]:
    """Yield the keys and the parts of a container; nothing for another object.

    Example:
        >>> list(parts({"x": 1})), list(parts("text"))
        ([('x', 1)], [])
    """
    kind = type(value)
    if issubclass(kind, dict):
        yield from dict.items(value)  # type: ignore[arg-type]
        return
    for base in (list, tuple, deque):
        if issubclass(kind, base):
            yield from enumerate(base.__iter__(value))  # type: ignore[arg-type]
            return
    inner = _wrapped(value)
    if inner is not None:
        yield from parts(inner)


def attribute(value: object, name: str) -> Any:
    """Return an attribute that an object or its class stores; None for a property, a method, or no attribute."""
    own = attributes(value)
    if name in own:
        return own[name]
    found = next((vars(base)[name] for base in type(value).__mro__ if name in vars(base)), None)
    return None if hasattr(type(found), "__get__") else found


def leaves(value: object, most: int = 100) -> list[Any]:
    """Return the leaves of nested dicts, lists and tuples, such as data loaders, but at most so many.

    Example:
        >>> leaves({"a": 1, "b": [2, 3]}), leaves(None)
        ([1, 2, 3], [])
    """
    found: list[Any] = []
    queue = [value]
    for _ in range(2 * most):
        if not queue or len(found) >= most:
            break
        first = queue.pop(0)
        if size(first) is not None:
            queue = [part for _, part in islice(parts(first), most)] + queue
        elif first is not None:
            found.append(first)
    return found


def _wrapped(value: object) -> Any:
    """Return the container in a `UserDict` or `UserList`, such as a batch of Hugging Face's tokenizers."""
    if not issubclass(type(value), (UserDict, UserList)):
        return None
    inner = attributes(value).get("data")
    return inner if issubclass(type(inner), (dict, list)) else None
