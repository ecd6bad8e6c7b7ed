"""How batches reach the training thread: which process loads them, its waits, and the workers that it needs."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.intervals import EMPTY, Intervals, averaged_steps, in_averaged_steps, merge
from lightning_perf.analysis.steps.breakdown import marks_by_phase
from lightning_perf.analysis.steps.idle import device_busy
from lightning_perf.trace.columns import NO_ROW, DeviceKind, Int64Array
from lightning_perf.trace.trace import Trace

Loader = Literal["in_process", "workers"]

# `torch.utils.data` names its marks after the iterator's class.
_LOADERS: tuple[tuple[str, Loader], ...] = (
    ("_SingleProcessDataLoaderIter", "in_process"),
    ("_MultiProcessingDataLoaderIter", "workers"),
)


_COLLATING = frozenset({"aten::stack", "aten::lift_fresh"})
"""Operators with which ``torch.utils.data.default_collate`` makes tensors, from tensors and from numbers."""


class Loading(Struct, frozen=True):
    """How batches are fetched and moved, over the averaged steps.

    Attributes:
        loader: The loader of batches: the training process itself (``num_workers=0``) or worker processes; ``None`` if
            the recording does not say.
        fetches: Fetches of a batch by the training thread.
        fetch_ns: Time inside them, whether device work overlaps it or not.
        operator_ns: The part of that in which the thread ran operators itself: stacking, decoding, transforming.
        pageable_copies: Copies from pageable host memory to the device, which the host must wait for.
        pageable_bytes: Bytes that they moved.
        pageable_ns: Their time.
        pageable_wait_ns: Time after them in which the device idles until the host issues work again, of each copy at
            most as long as the host waited in its call.
        steps: Steps that the figures are over.
        tensors: Tensors of a batch: copies to the device per fetch, or those that torch's own ``collate_fn`` makes in
            the training process; ``None`` if neither is recorded.
    """

    loader: Loader | None
    fetches: int
    fetch_ns: int
    operator_ns: int
    pageable_copies: int
    pageable_bytes: int
    pageable_ns: int
    steps: int
    tensors: int | None = None
    pageable_wait_ns: int = 0


def loading(trace: Trace) -> Loading | None:
    """Measure how batches are fetched and moved; None without a marked fetch or a pageable copy."""
    marks = marks_by_phase(trace).get("fetch")
    fetches = EMPTY
    count = 0
    if marks is not None:
        waits = (marks.thread == trace.steps.thread) & in_averaged_steps(trace, marks.start_ns)
        fetches = merge(marks.start_ns[waits], marks.end_ns[waits])
        count = int(waits.sum())
    own = trace.operators.thread == trace.steps.thread
    at_work = merge(trace.operators.start_ns[own], trace.operators.end_ns[own])
    pageable_names = trace.names_where(lambda name: "Pageable ->" in name)
    device = trace.device
    copies = (device.kind == DeviceKind.H2D) & in_averaged_steps(trace, device.start_ns)
    pageable = copies & pageable_names[device.name]
    if not count and not pageable.any():
        return None
    return Loading(
        loader=_loader(trace),
        fetches=count,
        fetch_ns=fetches.length_ns,
        operator_ns=int(at_work.covered(fetches.start_ns, fetches.end_ns).sum()),
        pageable_copies=int(pageable.sum()),
        pageable_bytes=int(device.bytes[pageable].sum()),
        pageable_ns=int(device.duration_ns[pageable].sum()),
        steps=int(averaged_steps(trace).sum()),
        tensors=_tensors(trace, fetches, count, int(copies.sum())),
        pageable_wait_ns=_idle_after_ns(trace, np.flatnonzero(pageable)),
    )


def _idle_after_ns(trace: Trace, copies: Int64Array) -> int:
    """Return the device's idle time after copies, of each at most the time of its call on the host."""
    call = trace.links.device_runtime[copies]
    called = copies[call != NO_ROW]
    wait_ns = trace.runtime.duration_ns[call[call != NO_ROW]]
    end = trace.device.end_ns[called]
    later = np.searchsorted(trace.device.start_ns, end)
    next_work = np.append(trace.device.start_ns, 0)[later]
    idle_ns = np.maximum(next_work - end, 0) - device_busy(trace).covered(end, np.maximum(next_work, end))
    return int(np.minimum(idle_ns, wait_ns).sum())


def _tensors(trace: Trace, fetches: Intervals, count: int, copies: int) -> int | None:
    """Return the tensors of a batch, rounded up."""
    facts, table = trace.metadata.loader, trace.operators
    if not len(trace.device) and facts is not None and facts.kind is not None and facts.collate is None:
        collating = trace.names_where(_COLLATING.__contains__)[table.name] & (table.thread == trace.steps.thread)
        start, end = table.start_ns[collating], table.end_ns[collating]
        copies = int((fetches.covered(start, end) > 0).sum())
    return -(-copies // count) if copies and count else None


def _loader(trace: Trace) -> Loader | None:
    used = {trace.names[code] for code in np.unique(trace.annotations.name)}
    return next((loader for name, loader in _LOADERS if any(name in mark for mark in used)), None)


MOST_WORKERS = 16
"""Workers that are advised at most."""

SPARE = 0.25
"""Cores by which worker processes and training may exceed those of the machine before they compete."""

WORTH_A_WORKER = 0.1
"""Share by which further workers must shorten the step to be advised, if the cores do not suffice to keep up."""


def affordable_workers(cores: float, busy: float) -> int:
    """Return how many workers fit on some cores, if each computes for a share of the time.

    Example:
        >>> affordable_workers(4, 1.0), affordable_workers(4, 0.1), affordable_workers(4, 0.0) > 1000
        (4, 40, True)
    """
    return max(1, math.floor(cores / max(busy, 1e-4) + 1e-9))


class LoadingCost(Struct, frozen=True):
    """The cost of loading the batches of one step, and the rest of the step.

    Attributes:
        loading_ns: Time of one worker process to make and send them.
        busy: Share of this time in which the worker computes, 0 to 1. The rest is waiting, e.g. for a disk.
        rest_ns: Time of the step without waits for data.
        cores: Cores that the process may use; None if unknown.
        training_cores: Cores that the training itself computes on.
    """

    loading_ns: float
    busy: float
    rest_ns: float
    cores: int | None = None
    training_cores: int = 0

    @property
    def needed(self) -> int:
        """Workers that keep up with the rest of the step."""
        return max(1, math.ceil(self.loading_ns / self.rest_ns - 1e-9)) if self.rest_ns > 0 else MOST_WORKERS

    @property
    def advised(self) -> int:
        """Workers to advise: as many as keep up, or as many as the cores allow if these do not suffice for that."""
        most = min(self.needed, MOST_WORKERS)
        if self.pace_ns(most) <= self.rest_ns:
            return most
        enough_ns = (1 + WORTH_A_WORKER) * self.pace_ns(most)
        return next(workers for workers in range(1, most + 1) if self.pace_ns(workers) <= enough_ns)

    def pace_ns(self, workers: int, sent_ns: float = 0.0, received_ns: float = 0.0) -> float:
        """Return the time between steps that so many workers can keep up with, if they also send their batches.

        It is their own time for the batches of a step, or the processor time of a step on all cores if that is longer.
        A core that the training leaves idle while it waits makes batches. The training counts as one thread.
        """
        computed_ns = self.busy * self.loading_ns + sent_ns + self.rest_ns + received_ns
        return max((self.loading_ns + sent_ns) / workers, computed_ns / self.cores if self.cores else 0.0)

    def compete(self, workers: int) -> bool:
        """Return whether so many workers take cores from threads of torch: an operator waits for its last thread.

        A single thread shares its core with workers while it waits for data, which `step_ns` counts.
        """
        if not self.cores or self.training_cores < 2:
            return False
        return min(self.training_cores, self.cores) + workers * self.busy > self.cores + SPARE
