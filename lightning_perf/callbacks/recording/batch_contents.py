"""The contents of a batch, in numbers: they decide how long a worker process takes to send it."""

from __future__ import annotations

import dataclasses
import types
from itertools import chain, islice
from typing import Any

import numpy as np
import torch

from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.trace.description import Batch

MAX_OBJECTS = 2_000
"""Objects of a batch that are counted, in a few milliseconds of a step that is not recorded."""

SMALL = (bool, int, float, complex, type(None))
NO_DATA = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, torch.nn.Module)


class BatchContents:
    """Counts the contents of the first batch of each window.

    A batch may be any object, and no code of it runs. Plain containers are read by the methods of their base class, and
    objects by their ``__dict__``. Everything else, such as a generator, counts as one object.
    """

    def __init__(self, state: FitState) -> None:
        self._state = state
        self._batch: Batch | None = None

    def start(self) -> None:
        """Count again in the new window."""
        self._batch = None

    def add_batch(self, batch: Any) -> None:
        """Count a batch if it is the first one since the profiler warms up."""
        if self._batch is None and self._state.profiling and batch is not None:
            self._batch = count_contents(batch)

    def facts(self) -> dict[str, int | bool] | None:
        """Return the counts, as `lightning_perf.trace.description.Batch` reads them; None without a batch."""
        return None if self._batch is None else dataclasses.asdict(self._batch)


def count_contents(batch: Any) -> Batch:
    """Count the tensors of a batch, its other objects and their bytes.

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
    if issubclass(kind, SMALL) or issubclass(kind, NO_DATA):
        return []
    parts: list[Any] = []
    for plain in (list, tuple, set, frozenset):
        if issubclass(kind, plain):
            parts += islice(plain.__iter__(value), MAX_OBJECTS)
    if issubclass(kind, dict):
        parts += islice(chain.from_iterable(dict.items(value)), MAX_OBJECTS)
    if not issubclass(kind, torch.Tensor):
        parts += islice(_attributes(value, kind).values(), MAX_OBJECTS)
    return parts


def _attributes(value: Any, kind: type) -> dict[str, Any]:
    """Return the ``__dict__`` of an object; an empty one if its class does not have Python's own."""
    own = next((vars(base)["__dict__"] for base in kind.__mro__ if "__dict__" in vars(base)), None)
    return own.__get__(value) or {} if isinstance(own, types.GetSetDescriptorType) else {}
