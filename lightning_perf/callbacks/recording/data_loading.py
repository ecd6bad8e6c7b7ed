"""How a Trainer's batches are made, as a recording notes it: the advice on waits for data depends on it."""

from __future__ import annotations

import contextlib
import functools
import types
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from lightning_perf.callbacks.lightning_compat import Trainer
from lightning_perf.objects import attribute, attributes, is_tensor, leaves, parts, size

LIGHTNING = ("lightning", "pytorch_lightning")

MAX_OBJECTS = 2_000
MAX_ITEMS = 50
"""Objects below a dataset that are looked at, and items of one collection: enough to find a model that it holds."""

Facts = dict[str, str | int | bool | None]


def data_loading(trainer: Trainer) -> Facts:
    """Describe the training data's loader, as `lightning_perf.trace.description.DataLoading` does."""
    facts = loader_facts(trainer.train_dataloader, trainer.lightning_module)
    return facts | {"batches_per_epoch": _batches_per_epoch(trainer)} if facts else facts


def _batches_per_epoch(trainer: Trainer) -> int | None:
    """Return the batches of an epoch; None if it is open, or if a limit of the Trainer leaves a single one."""
    batches = trainer.num_training_batches
    if not isinstance(batches, int) or (batches == 1 and trainer.limit_train_batches != 1.0):
        return None
    return batches


def loader_facts(loaders: Any, module: Any) -> Facts:
    """Describe data loaders. Of several, the facts are those of the one that allows the fewest changes.

    Nothing says which of them takes the time, so facts that differ are left out.
    """
    found = [_facts(loader, module) for loader in leaves(loaders)]
    order = ("other", "iterable", "map")
    least = min(found, key=lambda facts: (not facts["uses_model"], order.index(str(facts["kind"]))), default={})
    same = {name for name in least if all(facts.get(name) == least[name] for facts in found)}
    return {name: value for name, value in least.items() if name in same or name in ("kind", "uses_model")}


def _facts(loader: Any, module: Any) -> Facts:
    if not issubclass(type(loader), DataLoader):
        return {"kind": "other", "uses_model": reaches_model(loader, module)}
    own = attributes(loader)
    dataset = own.get("dataset")
    sampler = own.get("sampler") if own.get("batch_sampler") is None else own["batch_sampler"]
    batch_size = attribute(sampler, "batch_size")
    below = dataset
    for _ in range(MAX_ITEMS):
        if issubclass(type(below), Subset):
            below = attribute(below, "dataset")
    return {
        "kind": "iterable" if issubclass(type(dataset), IterableDataset) else "map",
        "workers": loader.num_workers,
        "batch_size": batch_size if isinstance(batch_size, int) else None,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "in_memory": issubclass(type(below), TensorDataset),
        "batched": own.get("batch_sampler") is None or (below is dataset and hasattr(type(dataset), "__getitems__")),
        "uses_model": reaches_model(dataset, module) or reaches_model(sampler, module),
        "dataset": type(below).__name__,
        "collate": _collate(own.get("collate_fn")),
        "container": largest_container(dataset),
        "sampler": next(filter(None, (_own_sampler(own.get(name)) for name in ("batch_sampler", "sampler"))), None),
        "order": type(own["sampler"]).__name__ if own.get("sampler") is not None else None,
    }


LARGE_CONTAINER = 10_000
"""Objects from which a list or dictionary is large: workers that read them copy its pages."""


def largest_container(dataset: Any) -> str | None:
    """Describe the largest list, tuple or dictionary in the attributes of a data set; None without a large one.

    Example:
        >>> from types import SimpleNamespace
        >>> largest_container(SimpleNamespace(inner=SimpleNamespace(paths=["x"] * 20_000)))
        'inner.paths: 20,000 objects in a list'
    """
    found, seen = [], {id(dataset)}
    queue = deque([("", dataset)])
    while queue and len(seen) < MAX_ITEMS:
        path, value = queue.popleft()
        for name, child in islice(attributes(value).items(), MAX_ITEMS):
            length = size(child)
            if length is not None and length >= LARGE_CONTAINER:
                found.append((length, f"{path}{name}", type(child).__name__))
            elif length is None and id(child) not in seen and not is_tensor(child):
                seen.add(id(child))
                queue.append((f"{path}{name}.", child))
    length, name, kind = max(found, default=(0, "", ""))
    return f"{name}: {length:,} objects in a {kind}" if length else None


def _own_sampler(sampler: Any) -> str | None:
    """The class of a sampler, if it is neither torch's nor Lightning's."""
    kind = type(sampler)
    return None if sampler is None or kind.__module__.split(".")[0] in ("torch", *LIGHTNING) else kind.__name__


def _collate(function: Any) -> str | None:
    """The name of a loader's ``collate_fn``, if it is not torch's own."""
    kind = function if hasattr(function, "__qualname__") else type(function)
    return None if (kind.__module__ or "").split(".")[0] == "torch" else str(kind.__qualname__).split(".")[-1]


def reaches_model(root: Any, module: Any) -> bool:
    """Whether an object holds the model or a part of it: then its data depend on the state of the training."""
    own: set[int] | None = None
    queue, seen = deque([root]), {id(root)}
    while queue and len(seen) < MAX_OBJECTS:
        value = queue.popleft()
        if issubclass(type(value), (torch.nn.Module, torch.nn.Parameter)):
            if own is None:
                own = {id(part) for part in module.modules()} | {id(parameter) for parameter in module.parameters()}
            if id(value) in own:
                return True
        for child in _children(value):
            if id(child) not in seen:
                seen.add(id(child))
                queue.append(child)
    return False


def _children(value: Any) -> Iterator[Any]:
    """Return some objects that an object refers to. Tensors and Lightning's objects have none."""
    kind = type(value)
    if is_tensor(value):
        return
    if kind is types.MethodType:
        yield value.__self__
        yield value.__func__
    elif kind is types.FunctionType:
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                yield cell.cell_contents
    elif issubclass(kind, functools.partial):
        yield functools.partial.func.__get__(value)
        yield functools.partial.args.__get__(value)
        yield functools.partial.keywords.__get__(value)
    elif size(value) is not None:
        yield from (part for _, part in islice(parts(value), MAX_ITEMS))
    elif not _of_lightning(value):
        yield from islice(attributes(value).values(), MAX_ITEMS)


def _of_lightning(value: Any) -> bool:
    """Whether it is a Trainer or a data module, which a dataset may hold for other reasons."""
    return hasattr(type(value), "prepare_data") or type(value).__module__.split(".")[0] in LIGHTNING
