"""The cost of sending a batch from a worker process of a DataLoader to the training process."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.savings import counted
from lightning_perf.trace.description import Batch
from lightning_perf.units import format_duration

BATCH_NS = (150_000.0, 1_500_000.0)
TENSOR_NS = (30_000.0, 300_000.0)
TENSOR_BYTE_NS = (0.0, 0.3)
OBJECT_NS = (50.0, 1_000.0)
OBJECT_BYTE_NS = (0.2, 2.0)
"""Least and most time of the training thread to receive a batch, and of that for each of its parts.

Each tensor has a file of shared memory, which the receiver asks for through a socket and maps (torch.multiprocessing,
sharing strategy ``file_descriptor``). Other objects are pickled. Measured on 2 cores of a busy virtual machine (AMD
EPYC, torch 2.15): 1.2 ms for a batch of one tensor, 0.09 to 0.3 ms for each further one. The least allow for a machine
that is three times as fast.
"""

FP32_BYTES = 4

ON_BUSY_CORES = 1.5
"""Factor on the upper end of a measured time: in the training, caches are cold and other threads run."""


@dataclass(frozen=True)
class Transfer:
    """The cost of sending one batch between processes, at least and at most.

    Attributes:
        sent_ns: Time of the worker process beyond making the batch.
        received_ns: Time of the training thread.
        measured: Whether a probe measured it on this device.
        text: Where it was found out, as a sentence.
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
    if batch is None:
        batch = _recorded(analysis)
    if batch is None or not batch.complete:
        return None
    (low_ns, high_ns) = (_received_ns(batch, end) for end in (0, 1))
    return Transfer(
        (low_ns, high_ns),
        (low_ns, high_ns),
        measured=False,
        text=f"A batch has {counted(batch.tensors, 'tensor')}. Receiving them from a worker process takes the training "
        f"thread {_range(low_ns, high_ns)}, by the machine.",
    )


def _recorded(analysis: RankAnalysis) -> Batch | None:
    """Return a batch as the events of a recording show it: its tensors, and the bytes of the model's input."""
    loading, work = analysis.loading, analysis.workload
    if loading is None or not loading.tensors or not loading.fetches:
        return None
    data_bytes = (work.copied_bytes or 0) // loading.fetches or max(map(prod, work.inputs), default=0) * FP32_BYTES
    return Batch(loading.tensors, data_bytes, 0, 0)


def _received_ns(batch: Batch, end: int) -> float:
    return (
        BATCH_NS[end]
        + batch.tensors * TENSOR_NS[end]
        + batch.tensor_bytes * TENSOR_BYTE_NS[end]
        + batch.objects * OBJECT_NS[end]
        + batch.object_bytes * OBJECT_BYTE_NS[end]
    )


def _range(low_ns: float, high_ns: float) -> str:
    return f"{format_duration(low_ns)} to {format_duration(high_ns)}"
