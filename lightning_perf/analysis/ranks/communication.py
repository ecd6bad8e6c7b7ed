"""Communication: how much of it is exposed, how fast each collective is, and the wrappers that ask for it.

The formulas of the bandwidth are those of nccl-tests
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). The *algorithm bandwidth* is size over time. The
*bus bandwidth* corrects it for the amount that each rank must move.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.intervals import (
    EMPTY,
    averaged_time,
    in_averaged_host_steps,
    in_averaged_steps,
    intersect,
    json_list,
    merge,
    share_of,
    subtract,
    union,
)
from lightning_perf.analysis.steps.breakdown import host_collectives, host_sets, is_host_collective
from lightning_perf.trace.columns import BoolArray, Int64Array, matched_part
from lightning_perf.trace.indexing import enclosing_rows, parent_rows, used_codes
from lightning_perf.trace.trace import Trace

CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv", "other"
]

# `allreduce`, `_allgather_base`, `ncclDevKernel_ReduceScatter_Sum_f32_RING_LL`, `multimem_all_reduce_kernel`, …: the
# first matching rule counts, so a name that is part of another's comes after it.
_KINDS: tuple[tuple[CollectiveKind, re.Pattern[str]], ...] = (
    ("all_reduce", re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE)),
    ("all_gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    # DeepEP's dispatch sends tokens to the ranks of their experts, and combine sends the results back.
    ("all_to_all", re.compile(r"all_?to_?all|moea2a|dispatch|combine", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce", re.IGNORECASE)),
    ("send_recv", re.compile(r"send|recv", re.IGNORECASE)),
)

# Names of torch's ScalarType (https://github.com/pytorch/pytorch, ``c10/core/ScalarType.h``).
_ELEMENT_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8,
    "ComplexHalf": 4, "ComplexFloat": 8, "ComplexDouble": 16, "UInt16": 2, "UInt32": 4, "UInt64": 8,
}  # fmt: skip

# Names of C++ types in the inputs of operators and annotations.
_TYPE_BYTES = {
    "unsigned char": 1, "signed char": 1, "bool": 1, "short": 2, "short int": 2, "c10::Half": 2, "c10::BFloat16": 2,
    "int": 4, "float": 4, "long": 8, "long int": 8, "double": 8, "c10::complex<float>": 8, "c10::complex<double>": 16,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip


def collective_kind(name: str) -> CollectiveKind:
    """Return the type of a collective or its kernel, from its name."""
    return next((kind for kind, pattern in _KINDS if pattern.search(matched_part(name))), "other")


def element_bytes(dtype: str) -> int | None:
    """Return the size of one element of a torch data type; None for an unknown one."""
    return 1 if dtype.startswith("Float8") else _ELEMENT_BYTES.get(dtype)


def collective_bytes(kind: CollectiveKind, in_elements: int, out_elements: int, dtype: str) -> int | None:
    """Return the size of a collective as nccl-tests counts it: of the larger buffer, gathered or unscattered."""
    size = element_bytes(dtype)
    elements = out_elements if kind == "all_gather" else in_elements
    return size * elements if size is not None and elements > 0 else None


def message_bytes(types_json: str, shapes_json: str) -> int | None:
    """Return the size of a collective's tensors from the inputs of its annotation; None for unknown types or none."""
    total = 0
    types, shapes = json_list(types_json), json_list(shapes_json)
    for name, shape in zip(types, shapes, strict=False):
        size = _TYPE_BYTES.get(name) if isinstance(name, str) else None
        if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
            return None
        if size is None:
            if name in ("Scalar", ""):
                continue
            return None
        total += size * math.prod(shape)
    return total or None


def bus_factor(kind: CollectiveKind, ranks: int) -> float | None:
    """Return bus bandwidth over algorithm bandwidth; None for fewer than two ranks or an unknown collective."""
    if ranks < 2 or kind == "other":
        return None
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if kind in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


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
        communication_ns: Time in which a collective runs on the device, in all of these steps.
        overlapped_ns: The part of it in which a compute kernel runs, too.
        exposed_ns: The rest of it: the breakdown's ``communication``.
        exposed_share: Part of the steps' wall time, 0 to 1; None if the file is truncated.
        collectives: The collectives on the device, the longest time first.
        host_collectives: The collectives on the host, the longest time first. Empty if any ran on the device.
        host_exposed_ns: Time in which one of those runs while the host does nothing that the breakdown names: no
            operator runs, and the training thread does not wait for its batch.
    """

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
    compute, collective = (
        merge(trace.device.start_ns[rows], trace.device.end_ns[rows])
        for rows in (trace.device.is_compute, trace.device.is_collective & counted.any())
    )
    counted_time = averaged_time(trace)
    communication_ns = intersect(collective, counted_time).length_ns
    exposed_ns = intersect(subtract(collective, compute), counted_time).length_ns
    alone = subtract(host_collectives(trace), union(*host_sets(trace).values())) if on_host else EMPTY
    return Communication(
        communication_ns=communication_ns,
        overlapped_ns=communication_ns - exposed_ns,
        exposed_ns=exposed_ns,
        exposed_share=share_of(trace, exposed_ns, counted_time.length_ns),
        collectives=_collectives(trace, counted),
        host_collectives=on_host,
        host_exposed_ns=intersect(alone, counted_time).length_ns,
    )


def _collectives(trace: Trace, counted: BoolArray) -> tuple[CollectiveRow, ...]:
    table, device = trace.collectives, trace.device
    told = counted[table.device_row]
    rows = table.device_row[told]
    columns = (table.name, table.dtype, table.group, table.group_size, table.in_elements, table.out_elements)
    found = [*_rows(device.duration_ns[rows], np.stack([column[told] for column in columns]), trace.names)]
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
    ours = np.flatnonzero(
        trace.names_where(lambda name: name.startswith("nccl:"))[marks.name] & (marks.input_shapes > 0)
    )
    call = trace.links.device_runtime[rows]
    rows, call = rows[call >= 0], call[call >= 0]
    if not len(ours) or not len(rows):
        return rows[:0], ours[:0]
    ranges = marks.at(ours)
    order = np.argsort(call, kind="stable")
    place = enclosing_rows(trace.runtime.at(call[order]), ranges, parent_rows(ranges))
    return rows[order][place >= 0], ours[place[place >= 0]]


def _annotated_rows(trace: Trace, duration_ns: Int64Array, annotation: Int64Array) -> Iterator[CollectiveRow]:
    """Yield one row per name, types and shapes of the annotations."""
    marks = trace.annotations
    columns = (marks.name, marks.input_types, marks.input_shapes)
    for times, (code, types, shapes) in _by_key(duration_ns, np.stack([column[annotation] for column in columns])):
        name = trace.names[code].partition(":")[2]
        kind = collective_kind(name)
        listed = [each for each in json_list(trace.type_lists[types]) if each not in ("", "Scalar")]
        size = message_bytes(trace.type_lists[types], trace.shape_lists[shapes])
        # The inputs of an all-gather are one rank's part, and the annotation does not name the ranks.
        yield _row(name, kind, str(listed[0]) if listed else "", "", 0, None if kind == "all_gather" else size, times)


def _rows(duration_ns: Int64Array, keys: Int64Array, names: tuple[str, ...]) -> Iterator[CollectiveRow]:
    """Yield one row per distinct key: codes of name, dtype and group (-1: unknown), ranks, elements in and out."""
    for times, (name, dtype, process_group, ranks, in_elements, out_elements) in _by_key(duration_ns, keys):
        kind = collective_kind(names[name])
        type_name, group = (names[code] if code >= 0 else "" for code in (dtype, process_group))
        size = collective_bytes(kind, in_elements, out_elements, type_name)
        yield _row(names[name], kind, type_name, group, ranks, size, times)


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
    rows &= in_averaged_host_steps(trace, marks.start_ns)
    found = []
    for code in np.unique(marks.name[rows]).tolist():
        mine = rows & (marks.name == code)
        found.append(HostCollective(trace.names[code], int(mine.sum()), int(marks.duration_ns[mine].sum())))
    return tuple(sorted(found, key=lambda row: (-row.total_ns, row.name)))


Wrapper = Literal["DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"]


def wrappers(trace: Trace) -> tuple[Wrapper, ...]:
    """Find the wrappers with a marked forward."""
    names = {trace.names[code] for table in (trace.annotations, trace.operators) for code in used_codes(table.name)}
    return tuple(wrapper for wrapper in get_args(Wrapper) if f"{wrapper}.forward" in names)
