"""The fit's part of a run's fingerprint, read from the Trainer. Nothing in here draws random numbers.

The hashes of weights and of arrays are taken before the first step, on rank 0, within the limits of
`lightning_perf.compare.records.fingerprint`. Facts that need files or other programs come later, from a thread.
``python -m benchmarks.training.fingerprint`` measures the time.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np
import torch
from msgspec import Struct
from torch.utils.data import ConcatDataset, Subset

from lightning_perf.callbacks.lightning_compat import Module, Trainer, is_compiled
from lightning_perf.compare.records.content import UnreadableError
from lightning_perf.compare.records.fingerprint import (
    MAX_BLOCKS,
    MAX_FILES,
    MAX_NAMES,
    NOT_HASHED,
    Budget,
    at_even_distances,
    fact_of_hash,
    hash_files,
    hash_tensors,
)
from lightning_perf.machine.environment import device_facts, flag_facts, host_facts, variable_facts, version_facts
from lightning_perf.objects import attribute, attributes, is_array, leaves, parts, size
from lightning_perf.run_files.run_record import FactValue
from lightning_perf.workers.revision import git_revision

MAX_INDICES = 100_000
"""Longest list of the samples of a `Subset` that is hashed completely."""

MAX_DEPTH = 16
"""Data sets within data sets that are looked at."""

LOADING = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
"""Arguments of a ``DataLoader`` that change its speed but not its batches."""

Later: TypeAlias = Callable[[], FactValue]
"""Finds a fact by reading files or asking other programs, which may take long."""

Facts = dict[str, FactValue]
OpenFacts = Mapping[str, FactValue | Later]
"""Facts. Some may not be known yet."""


def training_facts(trainer: Trainer) -> Facts:
    """Return the facts ``train.…``: how the Trainer trains."""
    common = loop_facts(
        trainer.train_dataloader,
        trainer.optimizers,
        world_size=trainer.world_size,
        accumulate=trainer.accumulate_grad_batches,
    )
    facts: dict[str, object] = {
        "precision": getattr(trainer.precision_plugin, "precision", type(trainer.precision_plugin).__name__),
        "strategy": type(trainer.strategy).__name__,
        "first_step": trainer.global_step,
        "callbacks": _classes(trainer.callbacks),
        "loggers": _classes(trainer.loggers),
    }
    limits = (
        "max_epochs",
        "max_steps",
        "limit_train_batches",
        "limit_val_batches",
        "check_val_every_n_epoch",
        "val_check_interval",
        "gradient_clip_val",
        "gradient_clip_algorithm",
        "log_every_n_steps",
    )
    facts |= {name: getattr(trainer, name, None) for name in limits}
    return common | {f"train.{name}": _plain(value) for name, value in facts.items()}


def machine_facts(device: torch.device) -> OpenFacts:
    """Return the machine, device, versions, flags, environment variables and code of a training on a device."""
    facts = version_facts() | device_facts(device) | flag_facts() | variable_facts()
    return {**facts, **host_facts(), "code.revision": _revision}


def model_facts(module: Module, *, hashed: bool = True) -> Facts:
    """Return the facts ``model.…``. Of a sharded model, the hash is over the shards of this rank."""
    # Not the state dict: building it may be a collective call, and runs the user's hooks.
    named = [
        (name, tensor)
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
        if not torch.nn.parameter.is_lazy(tensor)
    ]
    parameters = [tensor for _, tensor in named if isinstance(tensor, torch.nn.Parameter)]
    weights: dict[str, Any] = {
        # The same weights, compiled or not. Of a sharded tensor only the local part: to gather it is a collective call.
        name.replace("_orig_mod.", ""): tensor.to_local() if hasattr(tensor, "to_local") else tensor
        for name, tensor in at_even_distances(named, MAX_BLOCKS)
    }
    if len(named) > MAX_BLOCKS:
        weights["tensors"] = len(named)
    facts: Facts = {
        "model.class": type(module).__qualname__,
        "model.parameters": sum(p.numel() for p in parameters),
        "model.compiled": is_compiled(module),
        "model.initial_weights": fact_of_hash(lambda: hash_tensors(weights)) if hashed else None,
    }
    # Absent rather than False, so that records from before this fact stay comparable.
    return facts | {"model.channels_last": True} if any(map(_is_channels_last, parameters)) else facts


def _is_channels_last(parameter: torch.Tensor) -> bool:
    by_chance = parameter.dim() != 4 or parameter.is_contiguous()
    return not by_chance and parameter.is_contiguous(memory_format=torch.channels_last)


def data_facts(trainer: Trainer, *, hashed: bool = True) -> OpenFacts:
    """Return the facts ``data.…`` of the training data, and ``data.val_…`` of the validation data."""
    budget = Budget()
    train = dataset_facts("data.", trainer.train_dataloader, budget, hashed=hashed)
    return {**train, **dataset_facts("data.val_", trainer.val_dataloaders, budget, hashed=hashed)}


def dataset_facts(prefix: str, loaders: Any, budget: Budget | None = None, *, hashed: bool = True) -> OpenFacts:
    """Return the facts of the data sets of a loader, or of several. Their names begin with `prefix`.

    There is no hash if a data set holds neither file names nor arrays. The hash of files comes later.
    """
    each = leaves(loaders)
    datasets = [attributes(loader).get("dataset", loader) for loader in each]
    shared = budget if budget is not None else Budget()
    manifests = [_manifest(dataset, shared) if hashed else None for dataset in datasets]
    return {
        f"{prefix}class": _joined([type(dataset).__qualname__ for dataset in datasets]),
        f"{prefix}length": _joined([_length(dataset) for dataset in datasets]),
        f"{prefix}manifest": _combined(manifests),
        **{f"{prefix}{name}": _joined([_plain(attribute(loader, name)) for loader in each]) for name in LOADING},
    }


def loop_facts(loaders: Any, optimizers: Sequence[Any], *, world_size: int, accumulate: int | None) -> Facts:
    """Return the facts ``train.…`` that every loop has."""
    facts = {
        "seed": torch.initial_seed(),
        "batch_size": _joined([_batch_size(loader) for loader in leaves(loaders)]),
        "accumulate": accumulate,
        "world_size": world_size,
        "strategy": "PerfLoop",
        "optimizer": "; ".join(map(_optimizer, optimizers)) or None,
    }
    return {f"train.{name}": _plain(value) for name, value in facts.items()}


def batch_facts(batch: Any) -> Facts:
    """Return a hash of the first batch, as the LightningModule gets it. No code of the batch's own classes runs."""
    return {"data.first_batch": fact_of_hash(lambda: hash_tensors(batch))}


class SampleFiles(Struct, frozen=True):
    """The files from which a data set reads its samples, in the order of the samples."""

    count: int
    path: Callable[[int], str]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> str:
        if not 0 <= number < self.count:
            raise IndexError(number)
        return self.path(number)


def dataset_files(dataset: Any, depth: int = MAX_DEPTH) -> SampleFiles | None:
    """Return the files from which a data set reads its samples; None for any other, e.g. one of texts."""
    own = attributes(dataset)
    if not depth:
        return None
    if issubclass(type(dataset), Subset):
        files = dataset_files(own.get("dataset"), depth - 1)
        indices: Any = own.get("indices")
        if files is None or type(indices) not in (list, tuple, range, np.ndarray):
            return None
        return SampleFiles(len(indices), lambda number: files[int(indices[number])])
    if issubclass(type(dataset), ConcatDataset):
        inner = [dataset_files(part, depth - 1) for _, part in islice(parts(own.get("datasets")), MAX_FILES + 1)]
        known = [files for files in inner if files is not None]
        if not known or len(known) < len(inner) or len(known) > MAX_FILES:
            return None
        ends = np.cumsum([len(files) for files in known])

        def path(number: int) -> str:
            part = int(np.searchsorted(ends, number, side="right"))
            return known[part][number - int(ends[part] - len(known[part]))]

        return SampleFiles(int(ends[-1]), path)
    samples = own.get("samples")
    if type(samples) not in (list, tuple) or not samples:
        return None
    if not all(_begins_with_path(sample) for sample in at_even_distances(samples, MAX_FILES)):
        return None
    # Not Path.is_file, which raises an error for a long text.
    first = os.fspath(samples[0][0])
    return SampleFiles(len(samples), lambda number: os.fspath(samples[number][0])) if os.path.isfile(first) else None  # noqa: PTH113


def _begins_with_path(sample: Any) -> bool:
    return type(sample) is tuple and bool(sample) and issubclass(type(sample[0]), (str, PurePath))


def _classes(parts: Sequence[Any]) -> str:
    theirs = [type(part) for part in parts if not type(part).__module__.startswith("lightning_perf.")]
    return ", ".join(sorted(kind.__qualname__ for kind in theirs))


def _manifest(dataset: Any, budget: Budget, depth: int = MAX_DEPTH) -> FactValue | Later:
    files = dataset_files(dataset)
    if files is not None and len(files):
        return functools.partial(hash_dataset_files, files)
    return fact_of_hash(lambda: _hash_arrays(dataset, budget, depth))


def _hash_arrays(dataset: Any, budget: Budget, depth: int) -> str | None:
    """Hash the arrays of a data set. Other attributes, e.g. transforms or caches, are not its content."""
    own = attributes(dataset)
    if issubclass(type(dataset), Subset) and depth:
        whole = _hash_arrays(own.get("dataset"), budget, depth - 1)
        return f"{whole}[{_hash_indices(own.get('indices'), budget)}]" if whole is not None else None
    if issubclass(type(dataset), ConcatDataset) and depth:
        budget.check_objects(size(own.get("datasets")) or 0)
        inner = [_hash_arrays(part, budget, depth - 1) for _, part in parts(own.get("datasets"))]
        return "+".join(map(str, inner)) if None not in inner else None
    return hash_tensors({name: value for name, value in own.items() if _holds_arrays(value, budget)}, budget)


def _hash_indices(indices: Any, budget: Budget) -> str | None:
    if is_array(indices):
        return hash_tensors(np.asarray(indices) if type(indices) is np.ndarray else indices, budget)
    if type(indices) not in (list, tuple, range):
        raise UnreadableError("the indices of a Subset are not a list")
    some = hash_tensors(np.asarray(at_even_distances(indices, MAX_INDICES)), budget)
    return some if len(indices) <= MAX_INDICES else f"{some}-sampled-2:{len(indices)}"


def hash_dataset_files(files: SampleFiles) -> str:
    """Hash some files of a data set: `hash_files` reads a sample of them."""
    paths = [files[number] for number in at_even_distances(range(len(files)), MAX_NAMES)]
    root = os.path.commonpath({os.path.dirname(path) for path in paths})  # noqa: PTH120
    return hash_files(paths, root, count=len(files))


def _holds_arrays(value: Any, budget: Budget) -> bool:
    if type(value) in (list, tuple):
        budget.check_objects(len(value))
        return bool(value) and all(map(is_array, value))
    return is_array(value)


def _combined(hashes: Sequence[FactValue | Later]) -> FactValue | Later:
    """Join the hashes of several data sets: unknown if one is, and known later if one is."""
    if any(map(callable, hashes)):
        return lambda: _combined([each() if callable(each) else each for each in hashes])  # type: ignore[return-value]
    known = [each for each in hashes if not callable(each)]
    unknown = next((each for each in known if isinstance(each, str) and each.startswith(NOT_HASHED)), None)
    if None in known or unknown is not None:
        return unknown
    return _joined(known)


def _joined(values: Sequence[FactValue]) -> FactValue:
    """Join the facts of several loaders. The fact of a single one keeps its type."""
    return values[0] if len(values) == 1 else ", ".join(map(str, values)) or None


def _batch_size(loader: Any) -> FactValue:
    found = attribute(loader, "batch_size")
    return _plain(found if found is not None else attribute(attribute(loader, "batch_sampler"), "batch_size"))


def _length(dataset: Any) -> int | None:
    try:  # the loader's sampler asks for it as well, and more often
        return len(dataset)
    except Exception:  # a data set without a length may raise any exception
        return None


def _optimizer(optimizer: Any) -> str:
    optimizer = getattr(optimizer, "optimizer", optimizer)
    settings = ", ".join(f"{name}={value}" for name, value in sorted(optimizer.defaults.items()))
    return f"{type(optimizer).__name__}({settings})"


def _plain(value: object) -> FactValue:
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


@functools.cache
def _revision() -> str | None:
    # Once per process: the process runs the code that it loaded, even if the files change later.
    return git_revision()
