"""``memory.rank0.jsonl``: the memory of a training at the ends of steps, and its tensors when the memory had grown."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

from lightning_perf.run_files.jsonl import Count, RankLog


class MemorySample(Struct, frozen=True):
    """The memory in use at the end of a step, by its index in this fit."""

    step: Count
    bytes: Count


class TensorGroup(Struct, frozen=True):
    """The tensors of one class, type, shape and device that Python objects refer to.

    Attributes:
        kind: Class, type and shape, e.g. ``Tensor float32 [32, 10]``.
        device: Their device.
        has_graph: Whether they keep a graph of autograd alive.
        count: Their number.
        bytes: Their memory. Tensors that share memory count once.
    """

    kind: str
    device: str
    has_graph: bool
    count: Count
    bytes: Count


class TensorCensus(Struct, frozen=True):
    """All tensors at the end of a step, and the container that grew most.

    Attributes:
        items: How many more items one list, dictionary or set has since the first census: that with the largest ones.
        item_bytes: The memory of these items, estimated from the last ones.
    """

    step: Count
    groups: tuple[TensorGroup, ...]
    items: Count = 0
    item_bytes: Count = 0


class WorkerGrowth(Struct, frozen=True):
    """The memory and the processor time of one worker process of the training's loader, from its start on.

    Attributes:
        workers: Worker processes of the loader.
        first_step: Step of the first sample.
        last_step: Step of the last sample.
        first_bytes: Memory that it shared with no other process at the first sample.
        last_bytes: The same at the last sample.
        resident_bytes: How much more memory it had then, shared or not.
        faulted_bytes: Memory that it touched first or copied in between. Pages that the training process copies are not
            among it.
        container: The largest list or dictionary that the data set holds, e.g. ``items: 600,000 objects in a list``;
            empty without a large one.
        cpu: Cores that a worker kept busy, without warm-up and validation: the mean of all workers, or of the slow one.
            None if unknown.
        core_wait: Share of that time in which it was ready to run and waited for a core.
        disk_wait: Share of that time in which it waited for a disk or a file system.
        memory_stalls: Time in which tasks of the container or the machine waited for memory, over that in which they
            waited for a disk, 0 to 1 (Linux's pressure stall information).
        read_bytes_per_s: Bytes per second that it fetched from a disk, because the page cache did not have them.
        open_batches: Batches that a worker had yet to make when a fetch started, in the mean.
        queued: Share of the batches ahead that were made then, and that the training had not received yet.
        slow: Number of the worker that still makes batches when all others have made theirs; None without one.
    """

    workers: Count
    first_step: Count
    last_step: Count
    first_bytes: Count
    last_bytes: Count
    resident_bytes: Count
    faulted_bytes: Count
    container: str = ""
    cpu: float | None = None
    core_wait: float | None = None
    disk_wait: float | None = None
    memory_stalls: float | None = None
    read_bytes_per_s: float | None = None
    open_batches: float | None = None
    queued: float | None = None
    slow: int | None = None

    @property
    def copied_bytes(self) -> int:
        """Memory that became its own without new memory: pages that were copied because it wrote to them."""
        return max(0, min(self.last_bytes - self.first_bytes, self.faulted_bytes) - self.resident_bytes)


class GrowthRecord(Struct, frozen=True):
    """The memory of a fit over time.

    Attributes:
        source: Where the samples are from: ``allocator`` of the GPU, or ``process`` for the resident memory of the
            process.
        samples: The samples, at equal distances.
        censuses: The first and the last census of tensors; empty if the memory did not grow.
    """

    rank: Count
    source: Literal["allocator", "process"]
    samples: tuple[MemorySample, ...]
    censuses: tuple[TensorCensus, ...]
    worker: WorkerGrowth | None = None


_RECORDS: RankLog[GrowthRecord] = RankLog(GrowthRecord, "memory", "memory over time")


def write_growth(folder: Path, record: GrowthRecord) -> None:
    """Write the record of a rank, atomically."""
    _RECORDS.replace(folder, record.rank, record)


def read_growth(folder: Path) -> GrowthRecord | None:
    """Read the record of the first rank; None if the run left none."""
    return next((record for path in _RECORDS.paths(folder)[:1] for record in _RECORDS.read(path)), None)
