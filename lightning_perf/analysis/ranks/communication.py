"""Communication: how much of it is exposed, how fast each collective is, and the wrappers that ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.core.arrays import json_list
from lightning_perf.analysis.core.averaged_steps import averaged_steps, averaged_wall_ns, in_averaged_steps, share_of
from lightning_perf.analysis.core.intervals import merge, subtract, union
from lightning_perf.analysis.ranks.collective_names import (
    CollectiveKind,
    bus_factor,
    collective_bytes,
    collective_kind,
    is_device_collective,
    is_host_collective,
    message_bytes,
)
from lightning_perf.analysis.steps.categories import host_sets
from lightning_perf.trace.columns import BoolArray, Int64Array
from lightning_perf.trace.indexing import enclosing_rows, parent_rows, used_codes
from lightning_perf.trace.trace import Trace


class StepCommunication(Struct, frozen=True):
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


class CollectiveRow(Struct, frozen=True):
    """All calls of one collective with one size.

    A collective's time includes the wait for the slowest rank. So bandwidths from the mean are those of the run, and
    those from the shortest call are closer to those of the link.

    Attributes:
        name: The collective as recorded, or as its annotation names it, or else its kernel.
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


class HostCollective(Struct, frozen=True):
    """All calls of a collective that runs on the host (Gloo, MPI, UCC), by its annotation.

    Attributes:
        name: The name as recorded, e.g. ``gloo:all_reduce``.
        calls: Calls.
        total_ns: Time of all calls. They may run at the same time as the training thread.
    """

    name: str
    calls: int
    total_ns: int


class Communication(Struct, frozen=True):
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
    """Measure communication and how much of it is exposed."""
    counted = trace.device.is_collective & in_averaged_steps(trace, trace.device.start_ns)
    on_host = () if counted.any() else _host_collectives(trace)
    if not counted.any() and not on_host:
        return None
    steps = _steps(trace) if counted.any() else ()
    wall_ns = averaged_wall_ns(trace)
    exposed_ns = sum(step.exposed_ns for step in steps)
    return Communication(
        steps=steps,
        compute_ns=sum(step.compute_ns for step in steps),
        communication_ns=sum(step.communication_ns for step in steps),
        overlapped_ns=sum(step.overlapped_ns for step in steps),
        exposed_ns=exposed_ns,
        exposed_share=share_of(trace, exposed_ns, wall_ns),
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
    marked, annotation = _annotations(trace, np.flatnonzero(untold))
    untold[marked] = False
    found += _annotated_rows(trace, device.duration_ns[marked], annotation)
    names = device.name[untold]
    blank = np.zeros_like(names)
    found += _rows(device.duration_ns[untold], np.stack([names, *[blank - 1] * 2, *[blank] * 3]), trace.names)
    return tuple(sorted(found, key=lambda row: (-row.total_ns, row.name, row.bytes or 0)))


def _annotations(trace: Trace, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the device rows that an annotation of their collective encloses on the host, and its row for each.

    Torch puts a range such as ``nccl:all_reduce`` around the call of every collective. With ``record_shapes``, its
    inputs are the tensors that are sent. Older versions of torch record the size nowhere else.
    """
    marks = trace.annotations
    ours = np.flatnonzero(trace.names_where(is_device_collective)[marks.name] & (marks.input_shapes > 0))
    call = trace.links.device_runtime[rows]
    rows, call = rows[call >= 0], call[call >= 0]
    if not len(ours) or not len(rows):
        return rows[:0], ours[:0]
    ranges = marks.at(ours)
    order = np.argsort(call, kind="stable")
    place = enclosing_rows(trace.runtime.at(call[order]), ranges, parent_rows(ranges))
    return rows[order][place >= 0], ours[place[place >= 0]]


def _annotated_rows(trace: Trace, duration_ns: Int64Array, annotation: Int64Array) -> list[CollectiveRow]:
    """Return one row per name, types and shapes of the annotations."""
    marks = trace.annotations
    columns = (marks.name, marks.input_types, marks.input_shapes)
    keys = np.stack([column[annotation].astype(np.int64) for column in columns])
    found = []
    for times, (code, types, shapes) in _by_key(duration_ns, keys):
        name = trace.names[code].partition(":")[2]
        kind = collective_kind(name)
        listed = [each for each in json_list(trace.type_lists[types]) if each not in ("", "Scalar")]
        size = message_bytes(trace.type_lists[types], trace.shape_lists[shapes])
        # The inputs of an all-gather are one rank's part, and the annotation does not name the ranks.
        found.append(
            _row(name, kind, str(listed[0]) if listed else "", "", 0, None if kind == "all_gather" else size, times)
        )
    return found


def _rows(duration_ns: Int64Array, keys: Int64Array, names: tuple[str, ...]) -> list[CollectiveRow]:
    """Return one row per distinct key: codes of name, dtype and group (-1: unknown), ranks, elements in and out."""
    found = []
    for times, (name, dtype, process_group, ranks, in_elements, out_elements) in _by_key(duration_ns, keys):
        kind = collective_kind(names[name])
        type_name = names[dtype] if dtype >= 0 else ""
        group = names[process_group] if process_group >= 0 else ""
        size = collective_bytes(kind, in_elements, out_elements, type_name)
        found.append(_row(names[name], kind, type_name, group, ranks, size, times))
    return found


def _by_key(duration_ns: Int64Array, keys: Int64Array) -> Iterator[tuple[Int64Array, list[int]]]:
    """Return the durations of each distinct key, and the key."""
    if not keys.shape[1]:
        return
    unique, group = np.unique(keys, axis=1, return_inverse=True)
    group = group.reshape(-1)
    times_of = np.split(duration_ns[np.argsort(group, kind="stable")], np.cumsum(np.bincount(group))[:-1])
    yield from zip(times_of, unique.T.tolist(), strict=True)


def _row(
    name: str, kind: CollectiveKind, dtype: str, group: str, ranks: int, size: int | None, times: Int64Array
) -> CollectiveRow:
    total, shortest = int(times.sum()), int(times.min())
    factor = bus_factor(kind, ranks)
    algorithm = size * len(times) * 1e9 / total if size is not None and total else None
    return CollectiveRow(
        name=name,
        dtype=dtype or None,
        group=group or None,
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
    busy = union(*host_sets(trace).values())
    alone = subtract(merge(marks.start_ns[rows], marks.end_ns[rows]), busy)
    return int(alone.covered(trace.steps.start_ns[averaged], trace.steps.end_ns[averaged]).sum())


Wrapper = Literal["DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"]

_MARKS: tuple[tuple[Wrapper, str], ...] = (
    ("DataParallel", "DataParallel.forward"),
    ("DistributedDataParallel", "DistributedDataParallel.forward"),
    ("FullyShardedDataParallel", "FullyShardedDataParallel.forward"),
)


def wrappers(trace: Trace) -> tuple[Wrapper, ...]:
    """Find the wrappers with a marked forward."""
    tables = (trace.annotations, trace.operators)
    names = {trace.names[code] for table in tables for code in used_codes(table.name)}
    return tuple(wrapper for wrapper, mark in _MARKS if mark in names)
