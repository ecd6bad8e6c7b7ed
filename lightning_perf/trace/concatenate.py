"""Several windows of one process ─► one `Trace`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lightning_perf.trace.columns import Int32Array, Metadata, Problems, Trace

__all__ = ["concatenate"]

_Table = TypeVar("_Table")
_CODES = {
    "name": "names",
    "dtype": "names",
    "group": "names",
    "thread": "threads",
    "input_types": "type_lists",
    "input_shapes": "shape_lists",
}
_NUMBERED = ("correlation", "sequence")
"""Numbers that link events inside one file, and may start again in the next."""


def concatenate(traces: Sequence[Trace]) -> Trace:
    """Put the recordings of one process behind each other, so that they are analysed as one.

    Strings are interned anew, and the numbers that link events inside a file (correlation, sequence) are shifted, so
    that events of different files never link.

    Args:
        traces: At least one recording; in any order, but not overlapping in time.

    Returns:
        One trace with the events of all, in time order. The first recording speaks for what they all say about
        themselves.
    """
    if len(traces) == 1:
        return traces[0]
    traces = sorted(traces, key=lambda trace: trace.begin_ns)
    tables: dict[str, dict[Any, int]] = {"names": {}, "threads": {}, "type_lists": {}, "shape_lists": {}}
    codes = [{name: _intern(tables[name], getattr(trace, name)) for name in tables} for trace in traces]

    def joined(name: str) -> Any:
        return _join([getattr(trace, name) for trace in traces], codes)

    device, order = _in_order(joined("device"))
    row_offsets = np.cumsum([0, *(len(trace.device) for trace in traces)])
    collectives = joined("collectives")
    shifted = np.concatenate([t.collectives.device_row + row_offsets[n] for n, t in enumerate(traces)])
    new_row = np.empty(len(order), dtype=np.int32)
    new_row[order] = np.arange(len(order), dtype=np.int32)
    memory = joined("memory")
    by_time = np.argsort(memory.time_ns, kind="stable")
    return Trace(
        sources=tuple(source for trace in traces for source in trace.sources),
        names=tuple(tables["names"]),
        threads=tuple(tables["threads"]),
        type_lists=tuple(tables["type_lists"]),
        shape_lists=tuple(tables["shape_lists"]),
        operators=_in_order(joined("operators"))[0],
        annotations=_in_order(joined("annotations"))[0],
        python=_in_order(joined("python"))[0],
        runtime=_in_order(joined("runtime"))[0],
        device=device,
        collectives=replace(collectives, device_row=new_row[shifted.astype(np.int64)]),
        memory=_take(memory, by_time),
        metadata=_first_known([trace.metadata for trace in traces]),
        problems=Problems(
            truncated=any(trace.problems.truncated for trace in traces),
            repaired_events=sum(trace.problems.repaired_events for trace in traces),
            dropped_events=sum(trace.problems.dropped_events for trace in traces),
            bad_durations=sum(trace.problems.bad_durations for trace in traces),
        ),
    )


def _intern(table: dict[Any, int], values: tuple[Any, ...]) -> Int32Array:
    return np.array([table.setdefault(value, len(table)) for value in values], dtype=np.int32)


def _join(parts: Sequence[_Table], codes: Sequence[dict[str, Int32Array]]) -> _Table:
    columns: dict[str, NDArray[Any]] = {}
    for column in _columns(parts[0]):
        values = [getattr(part, column) for part in parts]
        if column in _CODES:
            values = [new[_CODES[column]][value] for value, new in zip(values, codes, strict=True)]
        elif column in _NUMBERED:
            values = _shift(values)
        columns[column] = np.concatenate(values)
    return type(parts[0])(**columns)


def _shift(values: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    shifted, offset = [], 0
    for value in values:
        shifted.append(np.where(value >= 0, value + offset, value))
        offset = int(shifted[-1].max(initial=offset - 1)) + 1
    return shifted


def _in_order(table: Any) -> tuple[Any, NDArray[np.int64]]:
    order = np.lexsort((-table.end_ns, table.start_ns))
    return _take(table, order), order


def _take(table: _Table, rows: NDArray[np.int64]) -> _Table:
    return type(table)(**{column: getattr(table, column)[rows] for column in _columns(table)})


def _columns(table: Any) -> list[str]:
    return [field.name for field in fields(table)]


def _first_known(metadata: Sequence[Metadata]) -> Metadata:
    first = metadata[0]
    unknown = [field.name for field in fields(first) if getattr(first, field.name) in (None, ())]
    known = {
        name: next((value for other in metadata if (value := getattr(other, name)) not in (None, ())), None)
        for name in unknown
    }
    return replace(first, **{name: value for name, value in known.items() if value is not None})
