"""The time of a loader's worker processes: why they are slow, and the cost of sending a batch to the training."""

from __future__ import annotations

from math import prod
from typing import Literal, TypeAlias

from msgspec import Struct

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.run_files.fit.memory_growth import WorkerGrowth
from lightning_perf.trace.description import Batch
from lightning_perf.units import counted, format_bytes, format_duration, format_share

Kind: TypeAlias = Literal[
    "processor", "core", "disk", "memory", "other", "idle", "slow worker", "receiving", "uneven batches", "unknown"
]

EXPLAINS = 0.5
"""Share of the wait for data that a cause must explain to be named."""

QUEUED = 0.75
"""Share of the batches ahead that wait in the queue from which receiving them takes the time."""

SHORT_OF_MEMORY = 0.5
"""Share of the waits for disks that are waits for memory, from which missing memory is their cause."""

LEAST_NAMED = 0.005

OTHER_THAN_MORE: frozenset[Kind] = frozenset({"core", "memory", "receiving", "slow worker", "uneven batches"})
"""Causes that more worker processes do not remove."""

FIXES: dict[Kind, str] = {
    "core": "give the loader more cores, e.g. those that other programs use, or make each batch cheaper",
    "disk": "read less from the disk (keep the data in memory or on a faster disk, or pack samples into large files)",
    "memory": "free memory: use fewer worker processes, a smaller prefetch_factor or a smaller cache",
    "other": "find the stage that waits by lightning-perf data PKG:NAME",
    "receiving": "send fewer, larger tensors: concatenate those of a batch in collate_fn. Or measure num_workers=0: "
    "lightning-perf tune tries it",
    "slow worker": "find out why this worker process is slower, e.g. by its shard, its disk or its worker_init_fn, and "
    "give all of them the same work",
    "uneven batches": "raise prefetch_factor, so that more batches are ready when a long one comes",
}

_WORDS: dict[Kind, str] = {
    "processor": "computes for",
    "core": "waits for a core for",
    "disk": "waits for a disk or a file system for",
    "other": "waits for something else, such as a network, a lock or a sleep, for",
    "unknown": "waits for something else or has nothing to do for",
    "idle": "has nothing to do for up to",
}


class Cause(Struct, frozen=True):
    """The largest cause of slow workers that explains the wait for data, and the evidence for it in sentences."""

    kind: Kind
    text: str

    @property
    def fix(self) -> str:
        """A change that removes the cause, as an imperative; empty if more workers or cheaper batches are the fix."""
        return FIXES.get(self.kind, "")


def explain_workers(worker: WorkerGrowth | None, wait_share: float) -> Cause | None:
    """Explain a wait for data by the time of the loader's workers; None if it was not measured.

    A worker that is faster by a share of its time shortens the step by that share at most. So a cause with less than
    half of the wait's share does not explain it.
    """
    if worker is None or worker.cpu is None or worker.core_wait is None or worker.disk_wait is None:
        return None
    rest = max(0.0, 1 - worker.cpu - worker.core_wait)
    disk = min(rest, worker.disk_wait)
    known = worker.slow is None and worker.open_batches is not None
    idle = min(rest - disk, max(0.0, 1 - (worker.open_batches or 0.0))) if known else 0.0
    times: dict[Kind, float] = {
        "processor": worker.cpu,
        "core": worker.core_wait,
        "disk": disk,
        "other" if known or worker.slow is not None else "unknown": rest - disk - idle,
        "idle": idle,
    }
    text = _text(times, worker)
    kind = max(times, key=lambda name: times[name])
    if worker.slow is not None:
        return Cause("slow worker", text)
    if kind == "unknown" or times[kind] < EXPLAINS * wait_share:
        return Cause("unknown", f"{text} So no single cause of the wait is known.")
    if kind == "disk" and (worker.memory_stalls or 0.0) >= SHORT_OF_MEMORY:
        return Cause("memory", f"{text} The machine is short of memory: pages are swapped in, or read again.")
    if kind != "idle":
        return Cause(kind, text)
    if (worker.queued or 0.0) >= QUEUED:
        return Cause("receiving", f"{text} When a fetch starts, batches wait in the queue: receiving them is slow.")
    return Cause("uneven batches", f"{text} So single batches take much longer than the others.")


def _text(times: dict[Kind, float], worker: WorkerGrowth) -> str:
    rates = {"disk": f" (and reads {format_bytes(worker.read_bytes_per_s or 0.0)}/s)"}
    subject = f"Each of the {worker.workers} worker processes" if worker.workers > 1 else "The worker process"
    if worker.slow is not None:
        subject = f"Worker process {worker.slow} of 0 to {worker.workers - 1} is slower than the others. It"
    named = [kind for kind, share in times.items() if share >= LEAST_NAMED]
    parts = [f"{_WORDS[kind]} {format_share(times[kind])}{rates.get(kind, '')}" for kind in named]
    parts[0] += " of its time"
    listed = f"{', '.join(parts[:-1])}, and {parts[-1]}" if len(parts) > 1 else parts[0]
    return f"{subject} {listed}."


BATCH_NS = (150_000.0, 1_500_000.0)
PART_NS = {
    "tensors": (30_000.0, 300_000.0),
    "tensor_bytes": (0.0, 0.3),
    "objects": (50.0, 1_000.0),
    "object_bytes": (0.2, 2.0),
}
"""Least and most time of the training thread to receive a batch, and of that for each of its parts.

Each tensor has a file of shared memory, which the receiver asks for through a socket and maps (torch.multiprocessing,
sharing strategy ``file_descriptor``). Other objects are pickled. Measured on 2 cores of a busy virtual machine (AMD
EPYC, torch 2.15): 1.2 ms for a batch of one tensor, 0.09 to 0.3 ms for each further one. The least allow for a machine
that is three times as fast.
"""

FP32_BYTES = 4

ON_BUSY_CORES = 1.5
"""Factor on the upper end of a measured time: in the training, caches are cold and other threads run."""


class Transfer(Struct, frozen=True):
    """The cost of sending one batch between processes, at least and at most.

    `sent_ns` is the time of the worker process beyond making the batch, `received_ns` that of the training thread.
    """

    sent_ns: tuple[float, float]
    received_ns: tuple[float, float]
    measured: bool
    text: str


def batch_transfer(analysis: RankAnalysis) -> Transfer | None:
    """Return the cost of sending a batch between processes; None if the contents of a batch are unknown."""
    batch, probe = analysis.metadata.batch, analysis.probe
    if probe is not None and probe.transfer is not None and probe.same_device:
        found = probe.transfer
        low_ns, high_ns = found.received_low_ns, ON_BUSY_CORES * found.received_high_ns
        tensors = f" of {counted(batch.tensors, 'tensor')}" if batch is not None else ""
        return Transfer(
            (found.sent_low_ns, found.sent_high_ns),
            (low_ns, high_ns),
            measured=True,
            text=f"Receiving a batch{tensors} from a worker process takes the training thread "
            f"{_range(low_ns, high_ns)}, measured on this device.",
        )
    batch = batch or _recorded_batch(analysis)
    if batch is None or not batch.complete:
        return None
    low_ns, high_ns = (
        BATCH_NS[end] + sum(getattr(batch, part) * each_ns[end] for part, each_ns in PART_NS.items()) for end in (0, 1)
    )
    return Transfer(
        (low_ns, high_ns),
        (low_ns, high_ns),
        measured=False,
        text=f"A batch has {counted(batch.tensors, 'tensor')}. Receiving them from a worker process takes the training "
        f"thread {_range(low_ns, high_ns)}, by the machine.",
    )


def _recorded_batch(analysis: RankAnalysis) -> Batch | None:
    """Return a batch as the events of a recording show it: its tensors, and the bytes of the model's input."""
    loading, work = analysis.loading, analysis.workload
    if loading is None or not loading.tensors or not loading.fetches:
        return None
    data_bytes = (work.copied_bytes or 0) // loading.fetches or max(map(prod, work.inputs), default=0) * FP32_BYTES
    return Batch(loading.tensors, data_bytes, 0, 0)


def _range(low_ns: float, high_ns: float) -> str:
    return f"{format_duration(low_ns)} to {format_duration(high_ns)}"
