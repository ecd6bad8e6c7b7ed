"""Levers of the input pipeline: worker processes, pinned memory, and the samples of a batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from torch.utils.data import DataLoader, IterableDataset

from lightning_perf.analysis.host.loading import affordable_workers
from lightning_perf.callbacks.steps.core_use import Use, thread_use
from lightning_perf.tune.levers.lever import Machine, Setting
from lightning_perf.tune.training import Training

_KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)


FETCH_S = 1.0
FETCH_SAMPLES = 64
"""Limits of time and samples for this measurement."""


def fetch_cpu_share(training: Training) -> float | None:
    """Measure for which share of the time the processor works while samples are loaded, on a machine of its own.

    So time in which other programs had all cores does not count. Returns ``None`` for a data set without an index or
    with samples in memory.
    """
    loader = training_loader(training)
    if isinstance(loader, str) or isinstance(loader.dataset, IterableDataset):
        return None
    try:
        length = min(len(loader.dataset), FETCH_SAMPLES)  # type: ignore[arg-type]
        begin_s, before = time.perf_counter(), _core_use()
        for index in range(length):
            _fetch(loader.dataset, index)
            if time.perf_counter() - begin_s > FETCH_S:
                break
    except Exception:  # the user's code may index its data in another way
        return None
    busy_s, waited_s = ((now - then) / 1e9 for now, then in zip(_core_use(), before, strict=True))
    wall_s = time.perf_counter() - begin_s - waited_s
    # A sample in less than 100 µs comes from memory.
    return busy_s / wall_s if length and wall_s > 1e-4 * length else None


def _fetch(dataset: Any, index: int) -> None:
    """Get a sample as a DataLoader does, which prefers ``__getitems__``, e.g. of a Hugging Face data set."""
    if getitems := getattr(dataset, "__getitems__", None):
        getitems([index])
    else:
        dataset[index]


def _core_use() -> Use:
    """Return the time of this thread on a core and without one; outside Linux only that of the process on cores."""
    return thread_use() or (time.process_time_ns(), 0)


def training_loader(training: Training) -> DataLoader[Any] | str:
    """Return the DataLoader that the training would use, or the reason why it cannot be changed."""
    loader: DataLoader[Any] | str | None = training.loader
    if loader is None:
        loader = training.loader = _find_loader(training)
    return loader


def change_loader(training: Training, change: Callable[[DataLoader[Any]], DataLoader[Any]]) -> None:
    """Make the training use a changed DataLoader."""
    training.loader = None
    owner = _owner(training)
    if owner is None:
        training.data = change(training.data)
        return
    original = owner.train_dataloader
    owner.train_dataloader = lambda: change(original())


def rebuilt(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """Return the same loader with other settings.

    Example:
        >>> loader = rebuilt(DataLoader([1, 2, 3], batch_size=2), batch_size=3)
        >>> [batch.tolist() for batch in loader]
        [[1, 2, 3]]
    """
    arguments: dict[str, Any] = {name: getattr(loader, name) for name in _KEPT}
    if isinstance(loader.dataset, IterableDataset):
        arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_size is None and loader.batch_sampler is not None:
        arguments["batch_sampler"] = loader.batch_sampler
    else:
        arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last, "sampler": loader.sampler}
    arguments |= changes
    if not arguments["num_workers"]:
        arguments |= {"prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None}
    return DataLoader(loader.dataset, **arguments)


def _find_loader(training: Training) -> DataLoader[Any] | str:
    owner = _owner(training)
    loader = training.data
    if owner is not None:
        try:
            owner.prepare_data()
            owner.setup("fit")
            loader = owner.train_dataloader()
        except Exception as error:  # the user's code may need a Trainer, which does not exist yet
            return f"the DataLoader cannot be made without a running Trainer ({type(error).__name__})"
    if type(loader) is DataLoader:
        return loader
    return f"the training data come from {type(loader).__name__}, not from a plain DataLoader"


def _owner(training: Training) -> Any:
    """Return the object with ``train_dataloader``; None if the data are the loader themselves."""
    if training.data is None:
        return training.module
    return training.data if hasattr(training.data, "train_dataloader") else None


class Workers(Struct, frozen=True):
    """Batches made by worker processes that stay alive over epochs, some of them in advance."""

    count: int
    prefetch: int = 2

    def settings(self, training: Training) -> tuple[Setting, ...]:
        arguments = {"num_workers": str(self.count), "persistent_workers": "True"}
        loader = training_loader(training)
        if {self.prefetch, 2 if isinstance(loader, str) else loader.prefetch_factor or 2} != {2}:
            arguments["prefetch_factor"] = str(self.prefetch)
        return (Setting("DataLoader", arguments),)

    def missing(self, training: Training, machine: Machine) -> str | None:
        loader = training_loader(training)
        if isinstance(loader, str):
            return loader
        busy = 1.0 if machine.fetch_cpu_share is None else machine.fetch_cpu_share
        if self.count > affordable_workers(machine.cores, min(1.0, busy)):
            return f"there are {machine.cores} cores"
        if self.count > 1 and isinstance(loader.dataset, IterableDataset):
            return "each worker would yield all samples of an iterable data set, unless the data set splits them itself"
        same = loader.num_workers == self.count and loader.persistent_workers
        return "it is already set" if same and (loader.prefetch_factor or 2) == self.prefetch else None

    def apply(self, training: Training) -> None:
        change_loader(
            training,
            lambda loader: rebuilt(
                loader, num_workers=self.count, persistent_workers=True, prefetch_factor=self.prefetch
            ),
        )


class PinnedMemory:
    """Batches in page-locked memory, which a GPU copies from without waiting."""

    def missing(self, training: Training, machine: Machine) -> str | None:
        if machine.device != "cuda":
            return "needs a CUDA GPU"
        loader = training_loader(training)
        if isinstance(loader, str):
            return loader
        return "it is already set" if loader.pin_memory else None

    def settings(self, training: Training) -> tuple[Setting, ...]:
        return (Setting("DataLoader", {"pin_memory": "True"}),)

    def apply(self, training: Training) -> None:
        change_loader(training, lambda loader: rebuilt(loader, pin_memory=True))


_LINEAR_SCALING = "linear scaling (Goyal et al. 2017, arXiv:1706.02677): check the accuracy"


class BatchSize(Struct, frozen=True):
    """More samples per batch. This is another training, so the user has to choose its learning rate again."""

    factor: int

    def missing(self, training: Training, machine: Machine) -> str | None:
        return _why_fixed(training_loader(training), self.factor)

    def settings(self, training: Training) -> tuple[Setting, ...]:
        # If gradients are accumulated, a kept `FewerMicroBatches` may already have changed the batch size.
        accumulated = training.trainer.get("accumulate_grad_batches", 1) > 1
        size = f"{self.factor} * batch_size" if accumulated else self.factor * _batch_size(training_loader(training))
        return (
            Setting("DataLoader", {"batch_size": str(size)}),
            Setting("", line=f"lr = {self.factor} * lr  # {_LINEAR_SCALING}"),
        )

    def apply(self, training: Training) -> None:
        _enlarge(training, self.factor)


class FewerMicroBatches:
    """Accumulation over half as many batches of twice the size: the same samples per step, in larger batches."""

    def missing(self, training: Training, machine: Machine) -> str | None:
        batches = training.trainer.get("accumulate_grad_batches", 1)
        if batches < 2 or batches % 2:
            return "gradients are not accumulated over an even number of batches"
        return _why_fixed(training_loader(training), 2)

    def settings(self, training: Training) -> tuple[Setting, ...]:
        return (
            Setting("DataLoader", {"batch_size": str(2 * _batch_size(training_loader(training)))}),
            Setting("Trainer", {"accumulate_grad_batches": str(training.trainer["accumulate_grad_batches"] // 2)}),
        )

    def apply(self, training: Training) -> None:
        training.trainer["accumulate_grad_batches"] //= 2
        _enlarge(training, 2)


def _enlarge(training: Training, factor: int) -> None:
    change_loader(training, lambda loader: rebuilt(loader, batch_size=_batch_size(loader) * factor))


def _batch_size(loader: DataLoader[object] | str) -> int:
    return 1 if isinstance(loader, str) else loader.batch_size or 1


def _why_fixed(loader: DataLoader[object] | str, factor: int) -> str | None:
    if isinstance(loader, str):
        return loader
    if loader.batch_size is None:
        own = loader.batch_sampler is not None
        return "the DataLoader has a batch sampler of its own" if own else "the DataLoader makes no batches itself"
    if isinstance(loader.dataset, IterableDataset):
        return None
    try:
        samples = len(loader.sampler)  # type: ignore[arg-type]  # that it has one is asked here
    except (TypeError, NotImplementedError):
        return None  # an endless sampler
    return "an epoch has fewer samples than that" if samples < loader.batch_size * factor else None
