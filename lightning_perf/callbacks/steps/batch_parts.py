"""The tensors of a batch, and its size. A batch may be any object: none of its own code runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch

from lightning_perf.objects import attributes, is_tensor, parts, size

MOST_OBJECTS = 1000
"""Objects of a batch that are looked at: enough to find its first tensors, and less than a millisecond of work."""

USUAL_DEPTH = 4
"""Most batches are plain containers that begin with a tensor, so many levels down. Nothing has to be searched."""


class _Shaped:
    """The shape and type of a tensor of a class that computes its content, or of an object that stores its shape."""

    def __init__(self, shape: tuple[int, ...], dtype: object) -> None:
        self.shape = shape
        self.dtype = dtype


def named_tensors(batch: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and arrays of a batch with their names, which are empty in lists.

    A ``TensorDict`` without tensors that have a size of their own comes as one object with a shape.
    """
    stack: list[tuple[str, Any]] = [("", batch)]
    seen: set[int] = set()
    for _ in range(MOST_OBJECTS):
        if not stack:
            return
        name, value = stack.pop()
        if is_tensor(value):
            yield name, _plain_tensor(value)
        elif issubclass(type(value), np.ndarray):
            yield name, np.ndarray.view(value, np.ndarray)
        elif id(value) not in seen:
            seen.add(id(value))
            stack += reversed(list(islice(_members(value), MOST_OBJECTS)))


def batch_samples(batch: Any) -> int | None:
    """Count the samples of a batch: the first dimension of the first tensor in it, or the size that it stores.

    Returns:
        The samples, or None when the batch has no tensor with a dimension.

    Example:
        >>> batch_samples({"image": np.zeros((32, 3, 8, 8)), "label": np.zeros(32)})
        32
        >>> batch_samples(["only", "text"]) is None
        True
    """
    first = batch
    for _ in range(USUAL_DEPTH):
        kind = type(first)
        if kind is torch.Tensor and first.dim():
            return int(first.shape[0])
        if kind not in (tuple, list, dict) or not first:
            break
        first = next(iter(first.values())) if kind is dict else first[0]
    stored = _stored_shape(batch)
    if stored:
        return int(stored[0])
    return next((int(tensor.shape[0]) for _, tensor in named_tensors(batch) if len(tensor.shape)), None)


def _plain_tensor(value: torch.Tensor) -> Any:
    kind = type(value)
    if kind is torch.Tensor:
        return value
    with torch._C.DisableTorchFunctionSubclass():
        if kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
            return torch.Tensor.detach(value)
        return _Shaped(torch.Tensor.shape.__get__(value), torch.Tensor.dtype.__get__(value))  # type: ignore[attr-defined]


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if size(value) is not None:
        for key, part in parts(value):
            yield key if type(key) is str else "", part
        return
    own = attributes(value)
    if "_tensordict" in own:  # a TensorDict, or a class of one
        yield "", own["_tensordict"]
    elif any("__dataclass_fields__" in vars(base) for base in type(value).__mro__):
        yield from own.items()


def _stored_shape(value: Any) -> tuple[int, ...]:
    """Return the shape that an object stores, as a ``TensorDict`` does."""
    own = attributes(value)
    shape = own.get("shape", own.get("_batch_size"))
    if shape is None and "_tensordict" in own:
        return _stored_shape(own["_tensordict"])
    return shape if isinstance(shape, tuple) and all(type(length) is int for length in shape) else ()
