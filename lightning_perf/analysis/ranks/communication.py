"""Communication: how much of it is exposed, and how fast each collective is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_perf.analysis.core.averaged_steps import averaged_steps, in_averaged_steps
from lightning_perf.analysis.core.intervals import merge, subtract, union
from lightning_perf.analysis.ranks.collective_names import (
    bus_factor,
    collective_bytes,
    collective_kind,
    is_host_collective,
)
from lightning_perf.analysis.steps.categories import host_sets
from lightning_perf.trace.columns import BoolArray, Int64Array
from lightning_perf.trace.trace import Trace

__all__ = ["CollectiveRow", "Communication", "HostCollective", "StepCommunication", "communication"]


@dataclass(frozen=True)
class StepCommunication:
    """One averaged step.

    Attributes:
        number: The step's number.
        compute_ns: Time in which a compute kernel runs.
        communication_ns: Time in which a collective runs.
        overlapped_ns: Time in which both run.
        exposed_ns: Time in which a collective runs and no compute kernel.
    """

    number: int
    compute_ns: int
    communication_ns: int
    overlapped_ns: int
    exposed_ns: int


@dataclass(frozen=True)
class CollectiveRow:
    """All calls of one collective with one size.

    A collective's time includes the wait for the slowest rank. So bandwidths from the mean are those of the run, and
    those from the shortest call are closer to those of the link.

    Attributes:
        name: The collective as recorded, or its kernel if no collective is recorded.
        dtype: Element type; None if not recorded.
        group: Process group; None if not recorded.
        ranks: Ranks in the group; None if not recorded.
        bytes: Size of a call as nccl-tests counts it; None if not recorded.
        calls: Calls.
        total_ns: Time of all calls.
        mean_ns: Mean time of a call.
        min_ns: Shortest call.
        max_ns: Longest call.
        algorithm_bytes_per_s: Size over mean time; None if the size is not recorded.
        bus_bytes_per_s: Bus bandwidth from the mean time; None also for a group of one.
        best_bus_bytes_per_s: Bus bandwidth of the shortest call.
    """

    name: str
    dtype: str | None
    group: str | None
    ranks: int | None
    bytes: int | None
    calls: int
    total_ns: int
    mean_ns: int
    min_ns: int
    max_ns: int
    algorithm_bytes_per_s: float | None
    bus_bytes_per_s: float | None
    best_bus_bytes_per_s: float | None


@dataclass(frozen=True)
class HostCollective:
    """All calls of a collective that runs on the host (Gloo, MPI, UCC), by its annotation.

    Attributes:
        name: The name as recorded, e.g. ``gloo:all_reduce``.
        calls: Calls.
        total_ns: Time of all calls. They may run at the same time as the training thread.
    """

    name: str
    calls: int
    total_ns: int


@dataclass(frozen=True)
class Communication:
    """Communication in the averaged steps.

    Attributes:
        steps: Each step; empty if no collective ran on the device.
        compute_ns: Sum over the steps.
        communication_ns: Sum over the steps.
        overlapped_ns: Sum over the steps.
        exposed_ns: Sum over the steps: the breakdown's ``communication``.
        exposed_share: Part of the steps' wall time, 0 to 1; None if the file is truncated.
        collectives: The collectives on the device, the longest time first.
        host_collectives: The collectives on the host, the longest time first. Empty if any ran on the device.
        host_exposed_ns: Time in which one of those runs while the host does nothing that the breakdown names: no
            operator runs, and the training thread does not wait for its batch.
    """

    steps: tuple[StepCommunication, ...]
    compute_ns: int
    communication_ns: int
    overlapped_ns: int
    exposed_ns: int
    exposed_share: float | None
    collectives: tuple[CollectiveRow, ...]
    host_collectives: tuple[HostCollective, ...]
    host_exposed_ns: int = 0


def communication(trace: Trace) -> Communication | None:
    """Measure communication and how much of it is exposed.

    Args:
        trace: The recording.

    Returns:
        The figures, or None for a recording without collectives.
    """
    counted = trace.device.is_collective & in_averaged_steps(trace, trace.device.start_ns)
    on_host = () if counted.any() else _host_collectives(trace)
    if not counted.any() and not on_host:
        return None
    steps = _steps(trace) if counted.any() else ()
    averaged = averaged_steps(trace)
    wall_ns = int((trace.steps.end_ns - trace.steps.start_ns)[averaged].sum())
    exposed_ns = sum(step.exposed_ns for step in steps)
    return Communication(
        steps=steps,
        compute_ns=sum(step.compute_ns for step in steps),
        communication_ns=sum(step.communication_ns for step in steps),
        overlapped_ns=sum(step.overlapped_ns for step in steps),
        exposed_ns=exposed_ns,
        exposed_share=None if trace.problems.truncated or not wall_ns else exposed_ns / wall_ns,
        collectives=_collectives(trace, counted),
        host_collectives=on_host,
        host_exposed_ns=_host_exposed_ns(trace) if on_host else 0,
    )


def _steps(trace: Trace) -> tuple[StepCommunication, ...]:
    device, steps, averaged = trace.device, trace.steps, averaged_steps(trace)
    compute = merge(device.start_ns[device.is_compute], device.end_ns[device.is_compute])
    collective = merge(device.start_ns[device.is_collective], device.end_ns[device.is_collective])
    windows = steps.start_ns[averaged], steps.end_ns[averaged]
    computing, communicating = compute.covered(*windows), collective.covered(*windows)
    exposed = union(compute, collective).covered(*windows) - computing
    columns = (steps.number[averaged], computing, communicating, communicating - exposed, exposed)
    return tuple(StepCommunication(*row) for row in zip(*(column.tolist() for column in columns), strict=True))


def _collectives(trace: Trace, counted: BoolArray) -> tuple[CollectiveRow, ...]:
    table, device = trace.collectives, trace.device
    told = counted[table.device_row]
    rows = table.device_row[told]
    columns = (table.name, table.dtype, table.group, table.group_size, table.in_elements, table.out_elements)
    found = _rows(device.duration_ns[rows], np.stack([column[told] for column in columns]), trace.names)
    untold = counted.copy()
    untold[table.device_row] = False
    names = device.name[untold]
    blank = np.zeros_like(names)
    found += _rows(device.duration_ns[untold], np.stack([names, *[blank - 1] * 2, *[blank] * 3]), trace.names)
    return tuple(sorted(found, key=lambda row: (-row.total_ns, row.name, row.bytes or 0)))


def _rows(duration_ns: Int64Array, keys: Int64Array, names: tuple[str, ...]) -> list[CollectiveRow]:
    """Return one row per distinct key: codes of name, dtype and group (-1: unknown), ranks, elements in and out."""
    if not keys.shape[1]:
        return []
    unique, group = np.unique(keys, axis=1, return_inverse=True)
    group = group.reshape(-1)
    times_of = np.split(duration_ns[np.argsort(group, kind="stable")], np.cumsum(np.bincount(group))[:-1])
    found = []
    for times, key in zip(times_of, unique.T.tolist(), strict=True):
        name, dtype, process_group, ranks, in_elements, out_elements = key
        total, shortest = int(times.sum()), int(times.min())
        kind = collective_kind(names[name])
        type_name = names[dtype] if dtype >= 0 else ""
        size = collective_bytes(kind, in_elements, out_elements, type_name)
        factor = bus_factor(kind, ranks)
        algorithm = size * len(times) * 1e9 / total if size is not None and total else None
        found.append(
            CollectiveRow(
                name=names[name],
                dtype=type_name or None,
                group=(names[process_group] or None) if process_group >= 0 else None,
                ranks=ranks if ranks > 0 else None,
                bytes=size,
                calls=len(times),
                total_ns=total,
                mean_ns=round(total / len(times)),
                min_ns=shortest,
                max_ns=int(times.max()),
                algorithm_bytes_per_s=algorithm,
                bus_bytes_per_s=None if algorithm is None or factor is None else algorithm * factor,
                best_bus_bytes_per_s=size * 1e9 / shortest * factor if size and factor and shortest else None,
            )
        )
    return found


def _host_collectives(trace: Trace) -> tuple[HostCollective, ...]:
    marks = trace.annotations
    rows = trace.names_where(is_host_collective)[marks.name]
    rows &= in_averaged_steps(trace, marks.start_ns)
    found = []
    for code in np.unique(marks.name[rows]).tolist():
        mine = rows & (marks.name == code)
        found.append(HostCollective(trace.names[code], int(mine.sum()), int(marks.duration_ns[mine].sum())))
    return tuple(sorted(found, key=lambda row: (-row.total_ns, row.name)))


def _host_exposed_ns(trace: Trace) -> int:
    marks, averaged = trace.annotations, averaged_steps(trace)
    rows = trace.names_where(is_host_collective)[marks.name]
    busy = union(*(active for _, active in host_sets(trace)))
    alone = subtract(merge(marks.start_ns[rows], marks.end_ns[rows]), busy)
    return int(alone.covered(trace.steps.start_ns[averaged], trace.steps.end_ns[averaged]).sum())
