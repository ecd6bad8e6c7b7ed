"""Memory that grows from step to step, and the tensors that grow in number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lightning_perf.run_files.fit.memory_growth import GrowthRecord, TensorGroup, WorkerGrowth
from lightning_perf.trace.columns import Int64Array

MIN_SAMPLES = 16

QUARTERS = 4

STEADY = 0.25
"""In a leak, the median level rises from each quarter to the next by at least this share of the mean rise."""

MIN_BYTES = 16 * 2**20
MIN_SHARE = 0.02
"""Least growth over the samples, in bytes and as a share of the first level."""

SHOWN = 8
"""Groups of tensors that are listed."""


@dataclass(frozen=True)
class TensorGrowth:
    """Tensors of one kind that became more between two counts.

    Attributes:
        kind: Class, type and shape, e.g. ``Tensor float32 [32, 10]``.
        device: Their device.
        has_graph: Whether they keep a graph of autograd alive.
        count: How many more there are.
        bytes: How much more memory they take.
    """

    kind: str
    device: str
    has_graph: bool
    count: int
    bytes: int


@dataclass(frozen=True)
class MemoryGrowth:
    """The memory of a fit at the ends of steps.

    Attributes:
        rank: The process that measured it.
        source: ``allocator`` of the GPU, or ``process`` for the resident memory of the process.
        first_step: Step of the first sample.
        last_step: Step of the last sample.
        first_bytes: Median of the first quarter of the samples.
        last_bytes: Median of the last quarter.
        bytes_per_step: Growth per step, from these medians.
        grows: Whether the memory grows steadily, by enough to matter.
        counted_steps: Steps between the first and the last count of tensors; 0 without two counts.
        tensors: The kinds of tensors that grew between them, the most bytes first.
        items: How many more items the list, dictionary or set had then that grew most.
        batch_lengths: Different numbers of tokens that steps had; ``None`` if batches hold no token sequences.
        worker: The memory of a worker process of the loader; ``None`` without workers.
    """

    rank: int
    source: Literal["allocator", "process"]
    first_step: int
    last_step: int
    first_bytes: int
    last_bytes: int
    bytes_per_step: float
    grows: bool
    counted_steps: int
    tensors: tuple[TensorGrowth, ...]
    items: int = 0
    batch_lengths: int | None = None
    worker: WorkerGrowth | None = None


def summarize_growth(record: GrowthRecord, tokens: Int64Array | None = None) -> MemoryGrowth | None:
    """Find out whether the memory of a fit grows steadily.

    Args:
        tokens: Tokens of each step, -1 where unknown.
    """
    if len(record.samples) < MIN_SAMPLES:
        return None
    steps = np.array([sample.step for sample in record.samples], dtype=np.int64)
    level = np.array([sample.bytes for sample in record.samples], dtype=np.float64)
    medians = np.array([np.median(part) for part in np.array_split(level, QUARTERS)])
    middles = np.array([np.median(part) for part in np.array_split(steps, QUARTERS)])
    rises = np.diff(medians)
    growth = float(medians[-1] - medians[0])
    per_step = growth / float(middles[-1] - middles[0])
    whole = per_step * float(steps[-1] - steps[0])
    grows = bool((rises >= STEADY * rises.mean()).all()) and whole >= max(MIN_BYTES, MIN_SHARE * float(medians[0]))
    counted, tensors = _tensors(record)
    return MemoryGrowth(
        rank=record.rank,
        source=record.source,
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        first_bytes=int(medians[0]),
        last_bytes=int(medians[-1]),
        bytes_per_step=per_step,
        grows=grows,
        counted_steps=counted,
        tensors=tensors,
        items=record.censuses[-1].items if record.censuses else 0,
        batch_lengths=len(np.unique(tokens)) if tokens is not None and len(tokens) and (tokens > 0).all() else None,
        worker=record.worker,
    )


def _tensors(record: GrowthRecord) -> tuple[int, tuple[TensorGrowth, ...]]:
    if len(record.censuses) < 2:
        return 0, ()
    first, last = record.censuses[0], record.censuses[-1]
    before = {_key(group): group for group in first.groups}
    found = []
    for group in last.groups:
        old = before.get(_key(group))
        count = group.count - (old.count if old is not None else 0)
        size = group.bytes - (old.bytes if old is not None else 0)
        if count > 0:
            found.append(TensorGrowth(group.kind, group.device, group.has_graph, count, max(size, 0)))
    found.sort(key=lambda row: (-row.bytes, -row.count, row.kind))
    return last.step - first.step, tuple(found[:SHOWN])


def _key(group: TensorGroup) -> tuple[str, str, bool]:
    return group.kind, group.device, group.has_graph
