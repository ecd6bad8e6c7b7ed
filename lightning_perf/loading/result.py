"""The result of ``lightning-perf data``: the time of each stage per batch, the limit, and the rate of more workers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from lightning_perf.analysis.host.loading import MOST_WORKERS, LoadingCost
from lightning_perf.documents import TextDocument
from lightning_perf.errors import LocatedError
from lightning_perf.loading.stage_clock import READ
from lightning_perf.show.blocks import Block, Cell, Line, table
from lightning_perf.units import format_count, format_duration, format_rate, format_share

SCHEMA_VERSION = 1

Limit: TypeAlias = Literal["disk", "processor", "transfer", "too few workers", "none"]

TRANSFER_STAGES = ("transfer between processes", "pin memory")
"""Stages outside of the worker process."""


class LoadingError(LocatedError):
    """A data loader cannot be measured. The message says why, and how to fix it."""


class StageTime(Struct, frozen=True):
    """The mean time of a stage.

    Attributes:
        name: Its name, e.g. ``decode`` or ``transform Resize``.
        time_ns: Time per batch, without stages inside it.
    """

    name: str
    time_ns: int


class WorkerRate(Struct, frozen=True):
    """The estimated rate of a number of worker processes.

    Attributes:
        workers: The number.
        samples_per_second: The most samples per second, if training leaves all usable cores to the workers.
    """

    workers: int
    samples_per_second: float


class LoadingReport(TextDocument, frozen=True):
    """The time of one worker process per batch, by stage, and the limit of loading.

    Attributes:
        schema_version: Version of this document's layout.
        name: Name of the measured object.
        batches: Batches that the means are over. The first batch is left out.
        batch_size: Mean samples per batch.
        batch_bytes: Bytes of the tensors of the largest batch.
        stages: Mean time of each stage, the longest first.
        loading_ns: Time per batch in the worker process: all stages but the transfer and pinning.
        cpu_ns: Processor time of the worker per batch. The rest of the time it waits, e.g. for the disk.
        workers: The loader's own number of worker processes.
        cores: Cores that the process may use.
        step_ms: Time of a training step without waits, if it was given.
        needed_workers: Workers that load a batch per step; None without the time of a step.
        rates: Estimated rates of more workers.
        limit: The limit of loading: ``disk``, ``processor``, ``transfer``, ``too few workers``, or ``none``.
        advice: What to do, in a sentence.
        iterable: Whether the data set is an `IterableDataset`.
    """

    schema_version: int
    name: str
    batches: int
    batch_size: float
    batch_bytes: int
    stages: tuple[StageTime, ...]
    loading_ns: int
    cpu_ns: int
    workers: int
    cores: int
    step_ms: float | None
    needed_workers: int | None
    rates: tuple[WorkerRate, ...]
    limit: Limit
    advice: str
    iterable: bool = False

    def blocks(self) -> Iterator[Block]:
        """Yield the limit, the stages, and the rate of more workers."""
        per_sample = format_duration(self.loading_ns / max(self.batch_size, 1e-9))
        busy = format_share(self.cpu_ns / self.loading_ns)
        yield Line(f"Limit: {self.limit}. {self.advice}")
        yield Line(
            f"One worker needs {format_duration(self.loading_ns)} per batch of {self.batch_size:.4g} samples "
            f"({per_sample} per sample), and computes for {busy} of that time."
        )
        if self.needed_workers is not None and self.step_ms is not None:
            yield Line(
                f"To load a batch per step of {format_duration(self.step_ms * 1e6)}, you need num_workers="
                f"{self.needed_workers}. The loader has num_workers={self.workers}."
            )
        if self.iterable and (self.limit != "none" or self.workers > 1):
            yield Line(
                "More workers help an IterableDataset only if each yields a part of its own, by get_worker_info(). "
                "Otherwise each yields all of it."
            )
        total = sum(stage.time_ns for stage in self.stages) or 1
        stages = ((each.name, each.time_ns, each.time_ns / total) for each in self.stages)
        yield table(("stage", "time", "share"), stages, "Time per batch", "name duration share")
        rates = (
            (str(rate.workers), Cell(format_rate(rate.samples_per_second, "samples"), rate.samples_per_second))
            for rate in self.rates
        )
        yield table(("workers", "at most"), rates, "Estimated rate")


def judge_loading(
    *,
    stages: Sequence[StageTime],
    batches: int,
    samples: int,
    cpu_ns: int,
    workers: int,
    cores: int | None,
    step_ms: float | None,
    **facts: Any,
) -> LoadingReport:
    """Find the limit of a loader from the mean times of its stages per batch.

    W workers load W batches in the time that one needs for a batch, as long as the cores suffice for their processor
    time.

    `cpu_ns` is the processor time of a worker per batch, `samples` the number in all batches. The other facts
    go into the report unchanged.
    """
    cores = cores or 1
    loading_ns = max(1, sum(stage.time_ns for stage in stages if stage.name not in TRANSFER_STAGES))
    cpu_ns = min(cpu_ns, loading_ns)
    size = samples / batches
    most_per_s = cores * 1e9 / cpu_ns if cpu_ns else math.inf
    numbers = sorted({1, 2, 4, 8, MOST_WORKERS, max(1, workers)})
    rates = tuple(WorkerRate(number, size * min(number * 1e9 / loading_ns, most_per_s)) for number in numbers)
    cost = LoadingCost(loading_ns, cpu_ns / loading_ns, step_ms * 1e6, cores) if step_ms else None
    limit, advice = _limit(stages, loading_ns, cpu_ns, workers, cost)
    return LoadingReport(
        schema_version=SCHEMA_VERSION,
        batches=batches,
        batch_size=size,
        stages=tuple(stages),
        loading_ns=loading_ns,
        cpu_ns=cpu_ns,
        workers=workers,
        cores=cores,
        step_ms=step_ms,
        needed_workers=cost.needed if cost is not None else None,
        rates=rates,
        limit=limit,
        advice=advice,
        **facts,
    )


def _limit(
    stages: Sequence[StageTime], loading_ns: int, cpu_ns: int, workers: int, cost: LoadingCost | None
) -> tuple[Limit, str]:
    by_name = {stage.name: stage.time_ns for stage in stages}
    transfer_ns = sum(by_name.get(stage, 0) for stage in TRANSFER_STAGES)
    inside = [stage for stage in stages if stage.name not in TRANSFER_STAGES]
    top = max(inside, key=lambda stage: stage.time_ns)
    share = format_share(top.time_ns / loading_ns)
    if transfer_ns > loading_ns and not workers:
        return (
            "transfer",
            "Leave num_workers=0: sending a batch takes longer than loading it. Or collate it into few large tensors.",
        )
    if cost is not None:
        enough_cores = cost.advised >= cost.needed
        if workers >= cost.needed and enough_cores:
            return "none", f"{format_count(workers)} workers load faster than the step trains. Look for another cause."
        if enough_cores:
            return (
                "too few workers",
                f"Use more worker processes: DataLoader(…, num_workers={cost.needed}, persistent_workers=True).",
            )
    if transfer_ns > loading_ns:
        return "transfer", "Send less per batch, e.g. uint8 images that the device converts, or collate into tensors."
    waiting = loading_ns - cpu_ns >= 0.5 * loading_ns
    if waiting and by_name.get(READ, 0) >= 0.5 * loading_ns:
        return "disk", "Read from a faster disk, pack many samples into large files, or use more workers."
    if waiting:
        return (
            "too few workers",
            f"The worker mostly waits in {top.name} ({share}). More workers wait at once: raise num_workers.",
        )
    return "processor", f"Make {top.name} cheaper: it takes {share} of the loading time. Or use more workers and cores."
