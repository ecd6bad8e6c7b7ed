"""The contents of a batch, in numbers: they decide how long a worker process takes to send it."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import numpy as np
import torch

from lightning_perf.objects import attributes
from lightning_perf.trace.description import Batch

MAX_OBJECTS = 2_000
"""Objects of a batch that are counted, in a few milliseconds of a step that is not recorded."""

SMALL = (bool, int, float, complex, type(None))


def count_contents(batch: Any) -> Batch:
    """Count the tensors of a batch, its other objects and their bytes.

    A batch may be any object, and no code of it runs. Plain containers are read by the methods of their base class, and
    objects by their ``__dict__``. Everything else, such as a generator, counts as one object.

    Example:
        >>> count_contents({"image": torch.zeros(2, 3), "names": ["a", "b"]})
        Batch(tensors=1, tensor_bytes=24, objects=6, object_bytes=12, complete=True)
    """
    waiting, seen = [batch], set[int]()
    tensors = tensor_bytes = objects = object_bytes = 0
    while waiting and tensors + objects < MAX_OBJECTS:
        value = waiting.pop()
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            tensors += 1
            tensor_bytes += _tensor_bytes(value)
        else:
            objects += 1
            object_bytes += _own_bytes(value, kind)
        if id(value) not in seen:
            seen.add(id(value))
            waiting += _parts(value, kind)
    return Batch(tensors, tensor_bytes, objects, object_bytes, complete=not waiting)


def _tensor_bytes(tensor: Any) -> int:
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return int(tensor.numel()) * int(tensor.element_size())
    except Exception:  # e.g. a nested tensor of some layouts has no size
        return 0


def _own_bytes(value: Any, kind: type) -> int:
    """Return the bytes that go through the pipe unchanged."""
    if kind is np.ndarray:
        return int(value.nbytes)
    return len(value) if kind in (str, bytes, bytearray) else 0


def _parts(value: Any, kind: type) -> list[Any]:
    """Return the objects that are sent with an object, at most `MAX_OBJECTS` of them."""
    if issubclass(kind, (*SMALL, torch.nn.Module)):
        return []
    parts: list[Any] = []
    for plain in (list, tuple, set, frozenset):
        if issubclass(kind, plain):
            parts += islice(plain.__iter__(value), MAX_OBJECTS)
    if issubclass(kind, dict):
        parts += islice(chain.from_iterable(dict.items(value)), MAX_OBJECTS)
    if not issubclass(kind, torch.Tensor):
        parts += islice(attributes(value).values(), MAX_OBJECTS)
    return parts
