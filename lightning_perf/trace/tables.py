"""Turns rows as they were read into the sorted tables of a `Trace`."""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from lightning_perf.trace.assembly import Assembly, device_kind, is_annotation_name
from lightning_perf.trace.column_builders import UNREADABLE_NS, Names, Rows, nanoseconds
from lightning_perf.trace.columns import (
    Annotations,
    BoolArray,
    Collectives,
    Counters,
    DeviceEvents,
    GraphRegions,
    Int64Array,
    MemoryEvents,
    Operators,
    RuntimeCalls,
    Spans,
)
from lightning_perf.trace.indexing import distinct, time_order

__all__ = ["Tables", "build_tables"]

_DEVICE_TYPE_HIP = 6  # c10/core/DeviceType.h; in the tables 1, as CUDA
_DEVICE_TYPE_CUDA = 1

_Columns = dict[str, NDArray[Any]]


class Tables(TypedDict):
    """The tables by their names in `Trace`."""

    operators: Operators
    annotations: Annotations
    python: Spans
    runtime: RuntimeCalls
    device: DeviceEvents
    collectives: Collectives
    memory: MemoryEvents
    regions: GraphRegions
    counters: Counters


def build_tables(read: Assembly, base_time_ns: int) -> tuple[Tables, int]:
    """Finish the tables of a recording. Do not use `read` afterwards.

    Args:
        read: The rows.
        base_time_ns: Added to every time.

    Returns:
        The tables, and how many events were left out for a missing or negative duration or an unreadable time.

    Raises:
        InexactTimeError: Times have to be read as decimals.
    """
    device, device_order, bad_device = _device(read, base_time_ns)
    collectives = _collectives(read, device_order)
    columns, _, bad_operators = _sorted(read.operators, base_time_ns)
    moved, columns = _without_annotations(read.names, columns)
    operators = Operators(
        **_span(columns),
        input_types=columns.pop("types"),
        input_shapes=columns.pop("shapes"),
        input_strides=columns.pop("strides"),
        input_values=columns.pop("values"),
        sequence=columns.pop("sequence"),
        forward_thread=columns.pop("forward_thread"),
        flops=columns.pop("flops"),
    )
    annotations, bad_annotations = _annotations(read.annotations, moved, base_time_ns)
    python, _, bad_python = _sorted(read.python, base_time_ns)
    runtime, _, bad_runtime = _sorted(read.runtime, base_time_ns)
    memory, bad_memory = _memory(read.memory, base_time_ns)
    counters, bad_counters = _counters(read.counters, base_time_ns)
    bad = bad_device + bad_operators + bad_annotations + bad_python + bad_runtime + bad_memory + bad_counters
    return {
        "operators": operators,
        "annotations": annotations,
        "python": Spans(**_span(python)),
        "runtime": RuntimeCalls(**_span(runtime), correlation=runtime["correlation"]),
        "device": device,
        "collectives": collectives,
        "memory": memory,
        "regions": _regions(read, device_order),
        "counters": counters,
    }, bad


def _sorted(rows: Rows, base_time_ns: int) -> tuple[_Columns, NDArray[np.int64], int]:
    """Return the columns in time order, the row of each as read, and the number of rows left out."""
    start, duration = _ns(rows, "times"), _ns(rows, "durations")
    good = (start != UNREADABLE_NS) & (duration >= 0)
    kept = None if good.all() else np.flatnonzero(good)
    if kept is not None:
        start, duration = start[kept], duration[kept]
    end = start + duration
    order = time_order(start, end)
    rows_in_order = kept if order is None else order if kept is None else kept[order]
    columns: _Columns = {"start_ns": start, "end_ns": end}
    if order is not None:
        columns = {name: column[order] for name, column in columns.items()}
    columns["start_ns"] += base_time_ns
    columns["end_ns"] += base_time_ns
    for name in list(rows.columns):
        column = rows.take(name)
        columns[name] = column if rows_in_order is None else column[rows_in_order]
    left_out = len(good) - len(start)
    return columns, np.arange(len(start)) if rows_in_order is None else rows_in_order, left_out


def _ns(rows: Rows, name: str) -> Int64Array:
    values = np.asarray(getattr(rows, name))
    return nanoseconds(values) if values.dtype == np.float64 else values


def _span(columns: _Columns) -> _Columns:
    return {name: columns[name] for name in ("start_ns", "end_ns", "name", "thread")}


def _without_annotations(names: Names, columns: _Columns) -> tuple[_Columns, _Columns]:
    """Split operators into marked ranges, which recordings of 2021 keep among them, and operators."""
    by_name = np.fromiter((is_annotation_name(name) for name in names), dtype=np.bool_, count=len(names))
    if not by_name.any():
        return {}, columns
    marks: BoolArray = by_name[columns["name"]]
    if not marks.any():
        return {}, columns
    inputs = {"input_types": columns["types"], "input_shapes": columns["shapes"]}
    moved = {name: column[marks] for name, column in (_span(columns) | inputs).items()}
    return moved, {name: column[~marks] for name, column in columns.items()}


def _annotations(rows: Rows, moved: _Columns, base_time_ns: int) -> tuple[Annotations, int]:
    columns, _, bad = _sorted(rows, base_time_ns)
    columns["finished"] = columns["finished"].view(np.bool_)
    columns["input_types"], columns["input_shapes"] = columns.pop("types"), columns.pop("shapes")
    if moved and len(moved["name"]):
        moved["finished"] = np.ones(len(moved["name"]), dtype=np.bool_)
        columns = {name: np.concatenate((column, moved[name])) for name, column in columns.items()}
        order = time_order(columns["start_ns"], columns["end_ns"])
        if order is not None:
            columns = {name: column[order] for name, column in columns.items()}
    return Annotations(**columns), bad


def _device(read: Assembly, base_time_ns: int) -> tuple[DeviceEvents, NDArray[np.int64], int]:
    columns, order, bad = _sorted(read.device, base_time_ns)
    products, triples = read.sizes.products(), read.sizes.triples()
    table = DeviceEvents(
        start_ns=columns["start_ns"],
        end_ns=columns["end_ns"],
        name=columns["name"],
        kind=_kinds(read, columns),
        device=_narrowed(columns["device"], np.int16),
        stream=columns["stream"],
        correlation=columns["correlation"],
        bytes=columns["bytes"],
        grid_blocks=products[columns["grid"]],
        blocks_per_sm=columns["blocks_per_sm"],
        occupancy=(columns["occupancy_percent"] / 100).astype(np.float32),
        grid=triples[columns["grid"]],
        block=triples[columns["block"]],
        registers=columns["registers"],
        shared_bytes=columns["shared_bytes"],
    )
    return table, order, bad


def _kinds(read: Assembly, columns: _Columns) -> NDArray[np.uint8]:
    """Return a `DeviceKind` per row, decided once for each distinct name, destination and direction."""
    directions = read.directions.texts()
    names, targets = list(read.names), read.DESTINATIONS
    key = columns["name"].astype(np.int64) * len(targets) + columns["destination"]
    key = key * len(directions) + columns["direction"]
    different, at = distinct(key)
    kinds = np.zeros(len(different), dtype=np.uint8)
    for position, value in enumerate(different.tolist()):
        rest, direction = divmod(value, len(directions))
        name, target = divmod(rest, len(targets))
        kinds[position] = device_kind(targets[target], names[name], directions[direction])
    return kinds[at]


def _collectives(read: Assembly, device_order: NDArray[np.int64]) -> Collectives:
    place = _places(read, device_order)
    placed = [(int(place[row]), args) for row, args in read.collectives]
    rows = sorted(((at, args) for at, args in placed if at >= 0), key=lambda pair: pair[0])
    names = read.names

    def codes(field: int) -> NDArray[np.int32]:
        return np.array([names[_text(args[field])] for _, args in rows], dtype=np.int32)

    def counts(field: int) -> Int64Array:
        values = (_text(args[field]) for _, args in rows)
        return np.array([int(v) if v.isdecimal() and len(v) < 19 else 0 for v in values], dtype=np.int64)

    return Collectives(
        device_row=np.array([at for at, _ in rows], dtype=np.int32),
        name=codes(0),
        dtype=codes(1),
        group=codes(2),
        in_elements=counts(3),
        out_elements=counts(4),
        group_size=_narrowed(counts(5), np.int32),
    )


def _places(read: Assembly, device_order: NDArray[np.int64]) -> Int64Array:
    """Return for each device row as read its row in the table, or -1."""
    place = np.full(len(read.device), -1, dtype=np.int64)
    place[device_order] = np.arange(len(device_order))
    return place


def _regions(read: Assembly, device_order: NDArray[np.int64]) -> GraphRegions:
    if not read.regions:
        return GraphRegions()
    place = _places(read, device_order)
    rows = sorted((int(place[row]), name, backward) for row, name, backward in read.regions if place[row] >= 0)
    return GraphRegions(
        device_row=np.array([row for row, _, _ in rows], dtype=np.int32),
        name=np.array([name for _, name, _ in rows], dtype=np.int32),
        backward=np.array([backward for _, _, backward in rows], dtype=np.bool_),
    )


def _counters(rows: Rows, base_time_ns: int) -> tuple[Counters, int]:
    columns, _, bad = _sorted(rows, base_time_ns)
    return Counters(
        time_ns=columns["start_ns"],
        name=columns["name"],
        device=_narrowed(columns["device"], np.int16),
        value=columns["value"],
    ), bad


def _memory(rows: Rows, base_time_ns: int) -> tuple[MemoryEvents, int]:
    columns, _, bad = _sorted(rows, base_time_ns)
    device_type = columns["device_type"]
    return MemoryEvents(
        time_ns=columns["start_ns"],
        thread=columns["thread"],
        device_type=_narrowed(np.where(device_type == _DEVICE_TYPE_HIP, _DEVICE_TYPE_CUDA, device_type), np.int16),
        device=_narrowed(columns["device"], np.int16),
        address=columns["address"],
        bytes=columns["bytes"],
        allocated_bytes=columns["allocated"],
        reserved_bytes=columns["reserved"],
    ), bad


def _narrowed(values: NDArray[Any], dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    limits = np.iinfo(dtype)
    narrowed: NDArray[Any] = np.clip(values, limits.min, limits.max).astype(dtype)
    return narrowed


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").strip('"')
