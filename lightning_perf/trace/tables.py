"""Turns rows as they were read into the sorted tables of a `Trace`."""

from __future__ import annotations

from typing import Any

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
from lightning_perf.trace.on_disk import on_disk, release_columns

_DEVICE_TYPE_HIP = 6  # c10/core/DeviceType.h; in the tables 1, as CUDA
_DEVICE_TYPE_CUDA = 1

_Columns = dict[str, NDArray[Any]]


def build_tables(read: Assembly, base_time_ns: int) -> tuple[dict[str, Any], int]:
    """Finish the tables of a recording. Do not use `read` afterwards.

    Raises:
        InexactTimeError: Times have to be read as decimals.
    """
    device_rows = len(read.device)
    device, device_order, left_out = _sorted(read.device, base_time_ns)
    place = _places(device_rows, device_order)
    tables: dict[str, Any] = {
        "device": _device(read, device),
        "collectives": _collectives(read, place),
        "regions": _regions(read, place),
    }
    host = {}
    for name in ("operators", "annotations", "python", "runtime", "memory", "counters"):
        host[name], _, bad = _sorted(getattr(read, name), base_time_ns)
        left_out += bad
    moved, operators = _without_annotations(read.names, host["operators"])
    return tables | {
        "operators": Operators(**operators),
        "annotations": Annotations(**_with_moved(host["annotations"], moved)),
        "python": Spans(**host["python"]),
        "runtime": RuntimeCalls(**host["runtime"]),
        "memory": MemoryEvents(**_samples(host["memory"])),
        "counters": Counters(**_samples(host["counters"])),
    }, left_out


def _sorted(rows: Rows, base_time_ns: int) -> tuple[_Columns, NDArray[np.int64], int]:
    """Return the columns in time order, the row of each as read, and the number of rows left out.

    A large column is on disk as soon as it is finished, so that few are in memory at once.
    """
    start, end = (on_disk(_ns(values)) for values in rows.take_times())
    good = (start != UNREADABLE_NS) & (end >= 0)  # a duration until the start is added
    left_out = len(good) - int(np.count_nonzero(good))
    kept = np.flatnonzero(good) if left_out else None
    del good
    if kept is not None:
        start, end = start[kept], end[kept]
    end = on_disk(start + end)
    order = time_order(start, end)
    rows_in_order = kept if order is None else order if kept is None else kept[order]
    columns: _Columns = {}
    for name, times in (("start_ns", start), ("end_ns", end)):
        in_order = times + base_time_ns if order is None else times[order]
        if order is not None:
            in_order += base_time_ns
        columns[name] = on_disk(in_order)
    number = len(start)
    del start, end, times, in_order, order
    for name in list(rows.columns):
        column = rows.take(name)
        columns[name] = column if rows_in_order is None else on_disk(_at(column, rows_in_order))
        release_columns()
    return columns, np.arange(number) if rows_in_order is None else rows_in_order, left_out


def _at(column: NDArray[Any], rows: Int64Array) -> NDArray[Any]:
    """Return the values at some rows. One value that stands for all rows remains one."""
    return column[rows] if column.strides[0] else np.broadcast_to(column[:1], len(rows))


def _ns(values: NDArray[Any]) -> Int64Array:
    return nanoseconds(values) if values.dtype == np.float64 else np.ascontiguousarray(values)


def _without_annotations(names: Names, columns: _Columns) -> tuple[_Columns, _Columns]:
    """Split operators into marked ranges, which recordings of 2021 keep among them, and operators."""
    by_name = np.fromiter((is_annotation_name(name) for name in names), dtype=np.bool_, count=len(names))
    if not by_name.any():
        return {}, columns
    marks: BoolArray = by_name[columns["name"]]
    if not marks.any():
        return {}, columns
    kept = ("start_ns", "end_ns", "name", "thread", "input_types", "input_shapes")
    moved = {name: columns[name][marks] for name in kept}
    moved["finished"] = np.ones(len(moved["name"]), dtype=np.bool_)
    return moved, {name: column[~marks] for name, column in columns.items()}


def _with_moved(columns: _Columns, moved: _Columns) -> _Columns:
    """Return the columns of annotations with those that were found among the operators."""
    columns["finished"] = columns["finished"].view(np.bool_)
    if not moved:
        return columns
    columns = {name: np.concatenate((column, moved[name])) for name, column in columns.items()}
    order = time_order(columns["start_ns"], columns["end_ns"])
    return columns if order is None else {name: column[order] for name, column in columns.items()}


def _device(read: Assembly, columns: _Columns) -> DeviceEvents:
    columns["kind"] = _kinds(read, columns.pop("destination"), columns["name"], columns.pop("direction"))
    columns["device"] = _narrowed(columns["device"], np.int16)
    columns["grid_blocks"] = read.sizes.products()[columns["grid"]]
    columns["occupancy"] = (columns.pop("occupancy_percent") / 100).astype(np.float32)
    for name in ("grid", "block"):
        columns[name] = read.sizes.triples()[columns[name]]
    return DeviceEvents(**on_disk(columns))


def _kinds(read: Assembly, destination: NDArray[Any], name: NDArray[Any], direction: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a `DeviceKind` per row, decided once for each distinct name, destination and direction."""
    directions = read.directions.texts()
    names, targets = list(read.names), read.DESTINATIONS
    key = name.astype(np.int64) * len(targets) + destination
    key = key * len(directions) + direction
    different, at = distinct(key)
    kinds = np.zeros(len(different), dtype=np.uint8)
    for position, value in enumerate(different.tolist()):
        rest, way = divmod(value, len(directions))
        code, target = divmod(rest, len(targets))
        kinds[position] = device_kind(targets[target], names[code], directions[way])
    return kinds[at]


def _collectives(read: Assembly, place: Int64Array) -> Collectives:
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


def _places(number: int, device_order: NDArray[np.int64]) -> Int64Array:
    """Return for each of so many device rows as read its row in the table, or -1."""
    place = np.full(number, -1, dtype=np.int64)
    place[device_order] = np.arange(len(device_order))
    return place


def _regions(read: Assembly, place: Int64Array) -> GraphRegions:
    rows = sorted((int(place[row]), name, backward) for row, name, backward in read.regions if place[row] >= 0)
    return GraphRegions(
        device_row=np.array([row for row, _, _ in rows], dtype=np.int32),
        name=np.array([name for _, name, _ in rows], dtype=np.int32),
        backward=np.array([backward for _, _, backward in rows], dtype=np.bool_),
    )


def _samples(columns: _Columns) -> _Columns:
    """Return the columns of events without a duration."""
    columns["time_ns"] = columns.pop("start_ns")
    del columns["end_ns"]
    if "device_type" in columns:
        kinds = columns["device_type"]
        columns["device_type"] = np.where(kinds == _DEVICE_TYPE_HIP, _DEVICE_TYPE_CUDA, kinds)
    narrow = columns.keys() & {"device_type", "device"}
    return columns | {name: _narrowed(columns[name], np.int16) for name in narrow}


def _narrowed(values: NDArray[Any], dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    limits = np.iinfo(dtype)
    narrowed: NDArray[Any] = np.clip(values, limits.min, limits.max).astype(dtype)
    return narrowed


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").strip('"')
