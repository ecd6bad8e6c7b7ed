"""Why the worker processes of a loader are slow: their time on cores, and their waits for cores, disks and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from lightning_perf.trace.description import Processor
from lightning_perf.units import format_bytes, format_share

Kind: TypeAlias = Literal[
    "processor", "core", "disk", "memory", "other", "idle", "slow worker", "receiving", "uneven batches", "unknown"
]

EXPLAINS = 0.5
"""Share of the wait for data that a cause must explain to be named."""

QUEUED = 0.75
"""Share of the batches ahead that wait in the queue from which receiving them takes the time."""

SHORT_OF_MEMORY = 0.5
"""Share of the pressure on disks that is pressure on memory, from which missing memory causes the waits for disks."""

LEAST_NAMED = 0.005

OTHER_THAN_MORE: frozenset[Kind] = frozenset({"core", "memory", "slow worker", "uneven batches"})
"""Causes that more worker processes do not remove."""

FIXES: dict[Kind, str] = {
    "core": "give the loader more cores, e.g. those that other programs use, or make each batch cheaper",
    "disk": "read less from the disk (keep the data in memory or on a faster disk, or pack samples into large files)",
    "memory": "free memory: use fewer worker processes, a smaller prefetch_factor or a smaller cache",
    "other": "find the stage that waits by lightning-perf data PKG:NAME",
    "slow worker": "find out why this worker process is slower, e.g. by its shard, its disk or its worker_init_fn, and "
    "give all of them the same work",
    "uneven batches": "raise prefetch_factor, so that more batches are ready when a long one comes",
}

_WORDS: dict[Kind, str] = {
    "processor": "computes for",
    "core": "waits for a core for",
    "disk": "waits for a disk or a file system for",
    "other": "waits for something else, such as a network, a lock or a sleep, for",
    "idle": "has nothing to do for up to",
}


@dataclass(frozen=True)
class Cause:
    """The largest cause of slow workers that explains the wait for data, and the evidence for it in sentences."""

    kind: Kind
    text: str

    @property
    def fix(self) -> str:
        """A change that removes the cause, as an imperative; empty if more workers or cheaper batches are the fix."""
        return FIXES.get(self.kind, "")


def explain_workers(processor: Processor, workers: int, wait_share: float) -> Cause | None:
    """Explain a wait for data by the time of the loader's workers; None if it was not measured.

    A worker that is faster by a share of its time shortens the step by that share at most. So a cause with less than
    half of the wait's share does not explain it.
    """
    times = _times(processor)
    if times is None:
        return None
    text = _text(times, processor, workers)
    if processor.slow_worker is not None:
        return Cause("slow worker", text)
    least = EXPLAINS * wait_share
    kind = max(times, key=lambda name: times[name])
    if times[kind] < least:
        return Cause("unknown", f"{text} No single one of these explains the wait: its cause is not known.")
    if kind == "disk" and _short_of_memory(processor):
        return Cause("memory", f"{text} The machine is short of memory: pages are swapped in, or read again.")
    if kind != "idle":
        return Cause(kind, text)
    if (processor.queued_batches or 0.0) >= QUEUED:
        return Cause("receiving", f"{text} When a fetch starts, batches wait in the queue: receiving them is slow.")
    return Cause("uneven batches", f"{text} So single batches take much longer than the others.")


def _short_of_memory(processor: Processor) -> bool:
    disk, memory = processor.io_pressure, processor.memory_pressure
    return disk is not None and memory is not None and memory > 0 and memory >= SHORT_OF_MEMORY * disk


def _times(processor: Processor) -> dict[Kind, float] | None:
    """Return the shares of a worker's time; None if one of them was not measured."""
    cpu, core, disk = processor.worker_cpu, processor.worker_wait, processor.disk_wait
    if cpu is None or core is None or disk is None:
        return None
    rest = max(0.0, 1 - cpu - core)
    disk = min(rest, disk)
    idle = 0.0
    if processor.slow_worker is None and processor.worker_batches is not None:
        idle = min(rest - disk, max(0.0, 1 - processor.worker_batches))
    return {"processor": cpu, "core": core, "disk": disk, "other": rest - disk - idle, "idle": idle}


def _text(times: dict[Kind, float], processor: Processor, workers: int) -> str:
    read = processor.worker_read_bytes_per_s or 0.0
    rates = {"disk": f" (and reads {format_bytes(read)}/s)"}
    slow = processor.slow_worker
    subject = f"Each of the {workers} worker processes" if workers > 1 else "The worker process"
    first = f"Worker process {slow} of 0 to {workers - 1} is slower than the others. " if slow is not None else ""
    parts = [
        f"{_WORDS[kind]} {format_share(share)}{rates.get(kind, '')}"
        for kind, share in times.items()
        if share >= LEAST_NAMED
    ]
    parts[0] += " of its time"
    listed = f"{', '.join(parts[:-1])}, and {parts[-1]}" if len(parts) > 1 else parts[0]
    return f"{first}{'It' if slow is not None else subject} {listed}."
