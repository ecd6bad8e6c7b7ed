"""``memory.rank0.jsonl``: the memory of a training at the ends of steps, and its tensors when the memory had grown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lightning_perf.run_files.jsonl import Count, RankLog


@dataclass(frozen=True)
class MemorySample:
    """The memory at the end of a step.

    Attributes:
        step: Index of the step in this fit.
        bytes: Memory in use.
    """

    step: Count
    bytes: Count


@dataclass(frozen=True)
class TensorGroup:
    """The tensors of one class, type, shape and device that Python objects refer to.

    Attributes:
        kind: Class, type and shape, e.g. ``Tensor float32 [32, 10]``.
        device: Their device: ``cpu``, ``cuda:0``, ….
        has_graph: Whether they keep a graph of autograd alive.
        count: Their number.
        bytes: Their memory. Tensors that share memory count once.
    """

    kind: str
    device: str
    has_graph: bool
    count: Count
    bytes: Count


@dataclass(frozen=True)
class ObjectGroup:
    """The Python objects of one class, or the items in all lists, dictionaries and sets.

    Attributes:
        kind: Name of the class; ``items`` for the items.
        count: Their number.
    """

    kind: str
    count: Count


@dataclass(frozen=True)
class TensorCensus:
    """All tensors at the end of a step, and the most frequent other objects.

    Attributes:
        step: Index of the step in this fit.
        groups: The groups of tensors.
        objects: The classes of other objects that the garbage collector knows.
    """

    step: Count
    groups: tuple[TensorGroup, ...]
    objects: tuple[ObjectGroup, ...] = ()


@dataclass(frozen=True)
class GrowthRecord:
    """The memory of a fit over time.

    Attributes:
        rank: The process that measured it.
        source: Where the samples are from: ``allocator`` of the GPU, or ``process`` for the resident memory of the
            process.
        samples: The samples, at equal distances.
        censuses: The first and the last census of tensors; empty if the memory did not grow.
    """

    rank: Count
    source: Literal["allocator", "process"]
    samples: tuple[MemorySample, ...]
    censuses: tuple[TensorCensus, ...]


_RECORDS: RankLog[GrowthRecord] = RankLog(GrowthRecord, "memory", "memory over time")


def write_growth(folder: Path, record: GrowthRecord) -> None:
    """Write the record of a rank, atomically."""
    _RECORDS.replace(folder, record.rank, record)


def read_growth(folder: Path) -> GrowthRecord | None:
    """Read the record of the first rank; None if the run left none.

    Raises:
        TraceError: The file cannot be read, or holds something else.
    """
    return next((record for path in _RECORDS.paths(folder)[:1] for record in _RECORDS.read(path)), None)
