"""Runs a data loader in one worker process for a few seconds, and times its stages there."""

from __future__ import annotations

import pickle
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from msgspec import Struct
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from lightning_perf.callbacks.steps.batch_parts import batch_samples
from lightning_perf.errors import reason_of
from lightning_perf.loading.result import LoadingError, LoadingReport, StageTime, judge_loading
from lightning_perf.loading.stage_clock import OTHER, StageClock, instrument
from lightning_perf.workers.limits import usable_cores

COLLATE, TRANSFER, PIN = "collate", "transfer between processes", "pin memory"

_clock: StageClock | None = None


class _Timed(Struct, frozen=True):
    """A batch with the times of its stages in the worker process."""

    batch: Any
    times_ns: dict[str, int]
    cpu_ns: int
    samples: int
    ready_ns: int


class _TimedDataset:
    """A map-style data set that times itself in a worker process."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        with _worker_clock(self._dataset).stage(OTHER):
            return self._dataset[index]


class _TimedBatches(_TimedDataset):
    """The same for a data set that loads a batch at a time."""

    def __getitems__(self, indices: Any) -> Any:
        with _worker_clock(self._dataset).stage(OTHER):
            return self._dataset.__getitems__(indices)


class _TimedIterable(IterableDataset[Any]):
    """An iterable data set that times itself in a worker process."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        clock = _worker_clock(self._dataset)
        with clock.stage(OTHER):
            samples = iter(self._dataset)
        while True:
            with clock.stage(OTHER):
                try:
                    sample = next(samples)
                except StopIteration:
                    return
            yield sample


class _TimedCollate:
    """The loader's collate function, which adds the times of the batch."""

    def __init__(self, collate: Any) -> None:
        self._collate = collate
        self._cpu_since_ns = 0

    def __call__(self, samples: Any) -> _Timed:
        clock = _worker_clock(None)
        with clock.stage(COLLATE):
            batch = self._collate(samples)
        cpu_ns = time.thread_time_ns()
        used_ns, self._cpu_since_ns = cpu_ns - self._cpu_since_ns, cpu_ns
        count = len(samples) if hasattr(samples, "__len__") else 1
        return _Timed(batch, clock.take(), used_ns, count, time.monotonic_ns())


def _worker_clock(dataset: Any) -> StageClock:
    """Return the clock of this worker process. The first call with a data set makes it and times the stages."""
    global _clock
    if _clock is None:
        _clock = StageClock()
        if dataset is not None and get_worker_info() is not None:
            instrument(dataset, _clock)
    return _clock


def training_loader(made: Any) -> Any:
    """Return the training loader of a DataLoader, a data module, a module, or a tuple of a module and one of them."""
    parts = made if isinstance(made, tuple) else (made,)
    for part in reversed(parts[:2]):
        if isinstance(part, DataLoader):
            return part
        if hasattr(part, "train_dataloader"):
            for name, arguments in (("prepare_data", {}), ("setup", {"stage": "fit"})):
                hook = getattr(part, name, None)
                if callable(hook) and len(parts) + hasattr(part, "prepare_data_per_node") > 1:
                    hook(**arguments)
            loader = part.train_dataloader()
            if isinstance(loader, DataLoader):
                return loader
    raise LoadingError(
        "PKG:NAME",
        f"returns {type(made).__name__}, which has no torch DataLoader for training",
        "Return a DataLoader, a LightningDataModule, or the same as for lightning-perf tune",
    )


def measure_loading(loader: Any, *, seconds: float, step_ms: float | None = None, name: str = "") -> LoadingReport:
    """Run a loader's data set in one worker process and time its stages. The loader stays unchanged.

    `step_ms` is the time of a training step without waits for data.
    """
    timed = _timed_loader(loader)
    sums_ns: defaultdict[str, int] = defaultdict(int)
    batches = samples = cpu_ns = transferred_bytes = 0
    pins = torch.cuda.is_available()
    try:
        batch_times = iter(timed)  # starts the worker process
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        problem = f"cannot run in a worker process ({error})"
        raise LoadingError(name or "the loader", problem, "Make its data set picklable") from error
    try:
        next(batch_times, None)  # includes imports, and fills caches
        deadline_s = time.monotonic() + seconds
        for item in batch_times:
            received_ns = time.monotonic_ns()
            for stage, time_ns in item.times_ns.items():
                sums_ns[stage] += time_ns
            sums_ns[TRANSFER] += max(0, received_ns - item.ready_ns)
            if pins:
                since_ns = time.perf_counter_ns()
                pin_memory(item.batch)  # type: ignore[no-untyped-call]
                sums_ns[PIN] += time.perf_counter_ns() - since_ns
            batches += 1
            samples += batch_samples(item.batch) or item.samples
            cpu_ns += item.cpu_ns
            transferred_bytes = max(transferred_bytes, _tensor_bytes(item.batch))
            if time.monotonic() >= deadline_s:
                break
    except Exception as error:
        problem = f"failed ({reason_of(error)})"
        raise LoadingError(name or "the loader", problem, "Check that it loads in a for loop") from error
    if not batches:
        raise LoadingError(name or "the loader", "has fewer than two batches", "Use a smaller batch or more samples")
    stages = tuple(
        StageTime(stage, round(time_ns / batches))
        for stage, time_ns in sorted(sums_ns.items(), key=lambda entry: -entry[1])
    )
    return judge_loading(
        name=name,
        stages=stages,
        batches=batches,
        samples=samples,
        cpu_ns=round(cpu_ns / batches),
        batch_bytes=transferred_bytes,
        workers=int(loader.num_workers),
        cores=usable_cores(),
        step_ms=step_ms,
        iterable=isinstance(loader.dataset, IterableDataset),
    )


def _timed_loader(loader: Any) -> Any:
    """Return a loader of the same batches, which one worker process loads and times."""
    inner = loader.dataset
    options: dict[str, Any] = {
        "num_workers": 1,
        "collate_fn": _TimedCollate(loader.collate_fn),
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context if loader.num_workers else None,
        "prefetch_factor": 1,
    }
    if isinstance(inner, IterableDataset):
        batches = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        return DataLoader(_TimedIterable(inner), **batches, **options)
    dataset: Any = _TimedBatches(inner) if hasattr(inner, "__getitems__") else _TimedDataset(inner)
    if loader.batch_sampler is None:  # the data set itself returns batches
        return DataLoader(dataset, batch_size=None, sampler=loader.sampler, **options)
    return DataLoader(dataset, batch_sampler=loader.batch_sampler, **options)


def _tensor_bytes(batch: Any) -> int:
    if isinstance(batch, torch.Tensor):
        return batch.numel() * batch.element_size()
    if isinstance(batch, dict):
        return sum(map(_tensor_bytes, batch.values()))
    return sum(map(_tensor_bytes, batch)) if isinstance(batch, (list, tuple)) else 0
