"""Lists the tensors of a training by address: parameters and buffers, gradients, and the state of the optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import torch

from lightning_perf.objects import attributes, is_tensor, parts, size
from lightning_perf.trace.tensors import KINDS, TensorKind
from lightning_perf.workers.limits import free_bytes

TensorLists: TypeAlias = dict[TensorKind, list[tuple[int, int, int]]]
"""For each kind the device (-1 for the host), address and size of each block."""

TensorSource: TypeAlias = Callable[[], tuple[Any, Iterable[Any]]]
"""Returns the model, or None if it is not known, and the optimizers."""

_MAX_DEPTH = 4
"""Containers are searched up to this depth."""

_MOST_PARTS = 10_000
"""Longer containers are left out: they hold the records of steps."""

_OWN = "lightning_perf.callbacks."
"""Package of the objects that may hold tensors of the callback."""


def list_tensors(source: TensorSource, own: Iterable[object] = ()) -> TensorLists:
    """List the tensors of a training, and those that objects of this package hold.

    Nothing is computed, and no device is waited for.
    """
    model, optimizers = source()
    lists: TensorLists = {kind: [] for kind in KINDS}
    if isinstance(model, torch.nn.Module):
        for parameter in model.parameters():
            lists["parameters"] += _blocks(parameter)
            if parameter.grad is not None:
                lists["gradients"] += _blocks(parameter.grad)
        for buffer in model.buffers():
            lists["parameters"] += _blocks(buffer)
    for optimizer in optimizers:
        for tensor in _tensors_in(getattr(optimizer, "state", {})):
            lists["optimizer_state"] += _blocks(tensor)
    for holder in own:
        for tensor in _tensors_in(holder, inside=_OWN):
            lists["lightning_perf"] += _blocks(tensor)
    return lists


class WindowLists:
    """The tensors at the start and at the end of one recorded window, for its trace file."""

    def __init__(self, source: TensorSource, own: Iterable[object] = ()) -> None:
        self._source, self._own = source, own
        self._start: TensorLists = {}
        self._available: dict[str, int] = {}

    def start(self) -> None:
        """List the tensors at the start of the recording."""
        self._start = list_tensors(self._source, self._own)
        self._available = _available_bytes(self._start)

    def stop(self) -> dict[str, object]:
        """List the tensors at the end of the recording, and return both lists for `TENSORS_KEY`."""
        return {"start": self._start, "end": list_tensors(self._source, self._own), "available_bytes": self._available}


def _available_bytes(lists: TensorLists) -> dict[str, int]:
    """Return by device ordinal the memory that tensors could use, with that of the listed tensors."""
    ordinals = {device for blocks in lists.values() for device, _, _ in blocks}
    found = {}
    for ordinal in ordinals:
        if ordinal < 0:
            free = free_bytes()
            held = sum(size for blocks in lists.values() for device, _, size in blocks if device < 0)
        else:
            free, held = torch.cuda.mem_get_info(ordinal)[0], torch.cuda.memory_reserved(ordinal)
        if free:
            found[str(ordinal)] = free + held
    return found


def _tensors_in(value: Any, depth: int = 0, inside: str | None = None) -> Iterator[torch.Tensor]:
    """Yield the tensors in a container, and in the attributes of objects of one package."""
    if is_tensor(value):
        yield value
    elif depth < _MAX_DEPTH:
        own = inside is not None and type(value).__module__.startswith(inside)
        if own or (size(value) or 0) <= _MOST_PARTS:
            for _, part in attributes(value).items() if own else parts(value):
                yield from _tensors_in(part, depth + 1, inside)


def _blocks(tensor: torch.Tensor) -> list[tuple[int, int, int]]:
    """Return device, address and size of a tensor's memory; nothing for a tensor without memory of its own."""
    tensor = getattr(tensor, "_local_tensor", tensor)  # the part of a DTensor on this rank, e.g. under FSDP
    if tensor.device.type not in ("cpu", "cuda") or tensor.layout is not torch.strided:
        return []
    try:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
    except (NotImplementedError, RuntimeError):  # a subclass of another package
        return []
    if not address or not size:
        return []
    return [(tensor.device.index or 0 if tensor.device.type == "cuda" else -1, address, size)]
