"""Data loaders of a training: found wherever the user keeps them, and made anew with other settings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from lightning_perf.tune.training import Training

__all__ = ["change_loader", "rebuilt", "training_loader"]


def training_loader(training: Training) -> DataLoader[Any] | None:
    """The DataLoader that the training would use, without beginning it; None where it has something else.

    Args:
        training: What to look into. A LightningDataModule is prepared and set up.
    """
    owner = _owner(training)
    if owner is None:
        return training.data if type(training.data) is DataLoader else None
    if owner is training.data:
        owner.prepare_data()
        owner.setup("fit")
    loader = owner.train_dataloader()
    return loader if type(loader) is DataLoader else None


def change_loader(training: Training, change: Callable[[DataLoader[Any]], DataLoader[Any]]) -> None:
    """Have the training use a changed DataLoader.

    Args:
        training: Changed in place.
        change: Makes the new one from the user's.
    """
    owner = _owner(training)
    if owner is None:
        training.data = change(training.data)
        return
    original = owner.train_dataloader

    @functools.wraps(original)
    def changed() -> DataLoader[Any]:
        return change(original())

    owner.train_dataloader = changed


def rebuilt(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """The same loader with other settings.

    Args:
        loader: A plain DataLoader.
        changes: Arguments of `DataLoader` that differ.
    """
    arguments: dict[str, Any] = {
        name: getattr(loader, name)
        for name in (
            "num_workers",
            "collate_fn",
            "pin_memory",
            "timeout",
            "worker_init_fn",
            "multiprocessing_context",
            "generator",
            "prefetch_factor",
            "persistent_workers",
        )
    }
    if isinstance(loader.dataset, IterableDataset):
        arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_size is None or type(loader.batch_sampler) is BatchSampler:
        arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last, "sampler": loader.sampler}
    else:
        arguments["batch_sampler"] = loader.batch_sampler
    arguments |= changes
    if not arguments["num_workers"]:
        arguments |= {"prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None}
    return DataLoader(loader.dataset, **arguments)


def _owner(training: Training) -> Any:
    """Who gives the loader by its ``train_dataloader``; None where the data are the loader."""
    if training.data is None:
        return training.module
    return training.data if hasattr(training.data, "train_dataloader") else None
