"""The fit's part of a run's fingerprint, read from the Trainer. Nothing in here draws random numbers.

The hashes are taken once per fit, on rank 0. Weights and a data set's arrays are hashed as a whole up to 1 GiB each and
by sample beyond that, in about two seconds per GiB. At most `MAX_FILES` files are read, and of these at most 1.3 GiB in
all. ``python -m benchmarks.training.fingerprint`` measures the time.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset

from lightning_perf.callbacks.lightning_compat import Module, Trainer
from lightning_perf.compare.records.fingerprint import hash_files, hash_tensors
from lightning_perf.machine.environment import device_facts, flag_facts, host_facts, variable_facts, version_facts
from lightning_perf.revision import git_revision
from lightning_perf.run_files.run_record import FactValue

__all__ = [
    "batch_facts",
    "data_facts",
    "dataset_facts",
    "dataset_files",
    "loop_facts",
    "machine_facts",
    "model_facts",
    "surroundings_facts",
    "training_facts",
]

MAX_FILES = 10_000
"""Most files that are read. From a larger data set, as many are read at even distances."""

LOADING = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
"""Arguments of a ``DataLoader`` that change its speed but not its batches."""

Facts = dict[str, FactValue]


def training_facts(trainer: Trainer) -> Facts:
    """Return the facts ``train.…``: how the Trainer trains.

    Args:
        trainer: The Trainer, at the start of training.

    Returns:
        Facts ``train.…``. The seed is the one that torch's CPU generator was last set to. Callbacks of lightning_perf
        are left out: the settings that they change, e.g. the precision, are facts of their own.
    """
    facts: dict[str, object] = {
        "seed": torch.initial_seed(),
        "precision": getattr(trainer.precision_plugin, "precision", type(trainer.precision_plugin).__name__),
        "batch_size": _joined([_batch_size(loader) for loader in _leaves(trainer.train_dataloader)]),
        "accumulate": trainer.accumulate_grad_batches,
        "world_size": trainer.world_size,
        "strategy": type(trainer.strategy).__name__,
        "optimizer": "; ".join(map(_optimizer, trainer.optimizers)),
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
    return {f"train.{name}": _plain(value) for name, value in facts.items()}


def surroundings_facts(trainer: Trainer) -> Facts:
    """Return the machine, device, versions, flags, environment variables and code of the fit.

    Args:
        trainer: The Trainer, at the start of training.
    """
    return machine_facts(trainer.strategy.root_device)


def machine_facts(device: torch.device) -> Facts:
    """Return the machine, device, versions, flags, environment variables and code of a training on a device."""
    facts = version_facts() | device_facts(device) | flag_facts() | variable_facts()
    return {**facts, **host_facts(), "code.revision": _revision()}


def model_facts(module: Module, *, hashed: bool = True) -> Facts:
    """Return the facts ``model.…``: the model, and the weights that it starts with.

    Args:
        module: The LightningModule.
        hashed: Whether to hash the weights.

    Returns:
        Its class, number of parameters, whether it or a part of it is compiled by ``torch.compile``, and a hash over
        its parameters and buffers. If the model is sharded, the hash is over the shards of this rank. If weights are in
        channels last, ``model.channels_last`` says so.
    """
    parameters = [p for p in module.parameters() if not torch.nn.parameter.is_lazy(p)]
    # Not the state dict: building it may be a collective call, and runs the user's hooks.
    named = [*module.named_parameters(), *module.named_buffers()]
    weights = {
        name.replace("_orig_mod.", ""): _local(tensor)  # the same weights, compiled or not
        for name, tensor in named
        if not torch.nn.parameter.is_lazy(tensor)
    }
    facts: Facts = {
        "model.class": type(module).__qualname__,
        "model.parameters": sum(p.numel() for p in parameters),
        "model.compiled": _is_compiled(module),
        "model.initial_weights": hash_tensors(weights) if hashed else None,
    }
    # Absent rather than False, so that records from before this fact stay comparable.
    return facts | {"model.channels_last": True} if any(map(_is_channels_last, parameters)) else facts


def _is_channels_last(parameter: torch.Tensor) -> bool:
    """Return whether a weight of a convolution has the channels of a pixel side by side, and not by chance of shape."""
    return (
        parameter.dim() == 4
        and not parameter.is_contiguous()
        and parameter.is_contiguous(memory_format=torch.channels_last)
    )


def data_facts(trainer: Trainer, *, hashed: bool = True) -> Facts:
    """Return the facts ``data.…``: the data that the Trainer trains and validates on.

    Args:
        trainer: The Trainer, at the start of training.
        hashed: Whether to hash the content of the data sets.

    Returns:
        For training, ``data.…``, and for validation, ``data.val_…``: the data sets' classes and numbers of samples, a
        hash of their content, and the settings of the loaders, e.g. ``data.num_workers``. The hash is missing if a data
        set holds neither file names nor arrays.
    """
    train = dataset_facts("data.", trainer.train_dataloader, hashed=hashed)
    return train | dataset_facts("data.val_", trainer.val_dataloaders, hashed=hashed)


def dataset_facts(prefix: str, loaders: Any, *, hashed: bool = True) -> Facts:
    """Return the facts of the data sets of a loader, or of several.

    Args:
        prefix: The first part of the names, e.g. ``data.``.
        loaders: A loader, or a nested collection of loaders.
        hashed: Whether to hash the content of the data sets.
    """
    leaves = _leaves(loaders)
    datasets = [getattr(loader, "dataset", loader) for loader in leaves]
    manifests = [_manifest(dataset) if hashed else None for dataset in datasets]
    return {
        f"{prefix}class": _joined([type(dataset).__qualname__ for dataset in datasets]),
        f"{prefix}length": _joined([_length(dataset) for dataset in datasets]),
        f"{prefix}manifest": None if None in manifests else _joined(manifests),
        **{f"{prefix}{name}": _joined([_plain(getattr(leaf, name, None)) for leaf in leaves]) for name in LOADING},
    }


def loop_facts(loaders: Any, optimizers: Sequence[Any], *, world_size: int, accumulate: int | None) -> Facts:
    """Return the facts ``train.…`` of a loop without a Trainer.

    Args:
        loaders: The training data's loader, or None.
        optimizers: The optimizers, as far as they are known.
        world_size: Ranks of the run.
        accumulate: Batches per optimizer step; None if the optimizer decides.
    """
    facts = {
        "train.seed": torch.initial_seed(),
        "train.batch_size": _joined([_batch_size(loader) for loader in _leaves(loaders)]),
        "train.accumulate": accumulate,
        "train.world_size": world_size,
        "train.strategy": "PerfLoop",
        "train.optimizer": "; ".join(map(_optimizer, optimizers)) or None,
    }
    return {name: _plain(value) for name, value in facts.items()}


def batch_facts(batch: Any) -> Facts:
    """Return a hash of the first batch.

    Args:
        batch: As the LightningModule gets it. An iterator, which some training steps take, is left alone.
    """
    return {"data.first_batch": None if isinstance(batch, Iterator) else hash_tensors(batch)}


def dataset_files(dataset: Any) -> list[str] | None:
    """Return the files from which a data set reads its samples.

    Args:
        dataset: A data set like torchvision's ``ImageFolder``, with a list ``samples`` of tuples that begin with a
            path; or subsets and concatenations of such.

    Returns:
        The paths in the order of the samples; None for any other data set, e.g. one of texts with their labels.
    """
    if isinstance(dataset, Subset):
        files = dataset_files(dataset.dataset)
        return [files[index] for index in dataset.indices] if files is not None else None
    if isinstance(dataset, ConcatDataset):
        parts = [dataset_files(part) for part in dataset.datasets]
        return [file for part in parts for file in part or ()] if None not in parts else None
    samples = getattr(dataset, "samples", None)
    if not isinstance(samples, (list, tuple)) or not samples:
        return None
    if not all(
        isinstance(sample, tuple) and sample and isinstance(sample[0], (str, os.PathLike)) for sample in samples
    ):
        return None
    # Not Path.is_file, which raises an error for a long text.
    return [os.fspath(sample[0]) for sample in samples] if os.path.isfile(samples[0][0]) else None  # noqa: PTH113


def _classes(parts: Sequence[Any]) -> str:
    theirs = [type(part) for part in parts if not type(part).__module__.startswith("lightning_perf.")]
    return ", ".join(sorted(kind.__qualname__ for kind in theirs))


def _is_compiled(module: Module) -> bool:
    # Lightning sets `_compiler_ctx` on a module that was compiled as a whole. The other two signs are torch's: a module
    # wrapped by torch.compile(), checked by name so that the compiler is not imported, and one compiled in place.
    if getattr(module, "_compiler_ctx", None) is not None:
        return True
    return any(
        type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )


def _manifest(dataset: Any) -> str | None:
    files = dataset_files(dataset)
    if files:
        return _hash_dataset_files(files)
    if isinstance(dataset, Subset):
        whole = _manifest(dataset.dataset)
        return f"{whole}[{hash_tensors(np.asarray(dataset.indices))}]" if whole is not None else None
    if isinstance(dataset, ConcatDataset):
        parts = [_manifest(part) for part in dataset.datasets]
        return "+".join(map(str, parts)) if None not in parts else None
    # Only its own arrays: other attributes, e.g. transforms or caches, are not its content.
    arrays = {name: value for name, value in getattr(dataset, "__dict__", {}).items() if _holds_arrays(value)}
    return hash_tensors(arrays)


def _hash_dataset_files(files: Sequence[str]) -> str:
    root = os.path.commonpath({os.path.dirname(file) for file in files})  # noqa: PTH120
    if len(files) <= MAX_FILES:
        return hash_files(files, root)
    names = np.frombuffer("\0".join(file.removeprefix(root) for file in files).encode(), np.uint8)
    content = hash_files(files[:: -(-len(files) // MAX_FILES)], root).removesuffix("-sampled")
    return f"{content}:{hash_tensors(names)}-sampled"


def _holds_arrays(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(item, (torch.Tensor, np.ndarray)) for item in value)
    return isinstance(value, (torch.Tensor, np.ndarray))


def _leaves(loaders: Any) -> list[Any]:
    """Return the data loaders of a Trainer, from one loader or a nested collection."""
    if loaders is None:
        return []
    loaders = getattr(loaders, "iterables", loaders)  # of a CombinedLoader
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    if isinstance(loaders, (list, tuple)):
        return [leaf for loader in loaders for leaf in _leaves(loader)]
    return [loaders]


def _joined(values: Sequence[FactValue]) -> FactValue:
    """Join the facts of several loaders. The fact of a single one keeps its type."""
    return values[0] if len(values) == 1 else ", ".join(map(str, values)) or None


def _batch_size(loader: Any) -> int | None:
    size = getattr(loader, "batch_size", None)
    return size if size is not None else getattr(getattr(loader, "batch_sampler", None), "batch_size", None)


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # a data set without a length may raise any exception
        return None


def _optimizer(optimizer: Any) -> str:
    optimizer = getattr(optimizer, "optimizer", optimizer)
    settings = ", ".join(f"{name}={value}" for name, value in sorted(optimizer.defaults.items()))
    return f"{type(optimizer).__name__}({settings})"


def _local(tensor: torch.Tensor) -> torch.Tensor:
    # If the tensor is sharded over ranks, use the local part: gathering it would be a collective call.
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _plain(value: object) -> FactValue:
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


@functools.cache
def _revision() -> str | None:
    # Once per process: the process runs the code that it loaded, even if the files change later.
    return git_revision()
