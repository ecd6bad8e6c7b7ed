"""Joins several recordings of one rank into one `Trace`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lightning_perf.trace.columns import (
    Annotations,
    Collectives,
    Counters,
    DeviceEvents,
    GraphRegions,
    MemoryEvents,
    Operators,
    RuntimeCalls,
    Spans,
    Thread,
)
from lightning_perf.trace.description import Metadata, Problems, Tokens
from lightning_perf.trace.indexing import time_order
from lightning_perf.trace.trace import Trace

__all__ = ["CODED_COLUMNS", "concatenate"]

_Codes = NDArray[np.int32]
_Table = TypeVar("_Table", Spans, Annotations, Operators, RuntimeCalls, DeviceEvents)

CODED_COLUMNS = {
    "name": "names",
    "thread": "threads",
    "input_types": "type_lists",
    "input_shapes": "shape_lists",
    "input_strides": "stride_lists",
    "input_values": "value_lists",
    "dtype": "names",
    "group": "names",
}
"""Columns of codes, and the attribute of `Trace` that lists the meaning of each code."""


def concatenate(traces: Sequence[Trace]) -> Trace:
    """Join the windows of one rank, or the parts of a split file, into one trace.

    Events are merged in time order, so that splitting a file changes nothing. Correlation numbers may restart in a
    later window. So device work belongs to the nearest call before it.

    Args:
        traces: At least one trace, all of one rank and on one clock.

    Returns:
        One trace with the sources, events and problems of all. Each metadata field is the first one recorded,
        and tokens are summed.

    Raises:
        ValueError: The list is empty.
    """
    if not traces:
        raise ValueError("no trace to join: pass at least one")
    if len(traces) == 1:
        return traces[0]
    traces = sorted(traces, key=lambda trace: trace.begin_ns)
    names, name_maps = _merged([t.names for t in traces], key=str)
    threads, thread_maps = _merged([t.threads for t in traces], key=lambda thread: (thread.process, thread.thread))
    types, type_maps = _merged([t.type_lists for t in traces], key=str)
    shapes, shape_maps = _merged([t.shape_lists for t in traces], key=str)
    strides, stride_maps = _merged([t.stride_lists for t in traces], key=str)
    values, value_maps = _merged([t.value_lists for t in traces], key=str)
    recode = [
        {"names": n, "threads": t, "type_lists": y, "shape_lists": s, "stride_lists": d, "value_lists": v}
        for n, t, y, s, d, v in zip(name_maps, thread_maps, type_maps, shape_maps, stride_maps, value_maps, strict=True)
    ]
    device, device_order = _joined([t.device for t in traces], recode)
    return Trace(
        sources=tuple(source for t in traces for source in t.sources),
        names=tuple(names),
        threads=tuple(_with_names(threads, traces)),
        type_lists=tuple(types),
        shape_lists=tuple(shapes),
        stride_lists=tuple(strides),
        value_lists=tuple(values),
        operators=_joined([t.operators for t in traces], recode)[0],
        annotations=_joined([t.annotations for t in traces], recode)[0],
        python=_joined([t.python for t in traces], recode)[0],
        runtime=_joined([t.runtime for t in traces], recode)[0],
        device=device,
        collectives=_joined_by_device_row([t.collectives for t in traces], traces, recode, device_order),
        memory=_joined_by_time([t.memory for t in traces], recode),
        regions=_joined_by_device_row([t.regions for t in traces], traces, recode, device_order),
        counters=_joined_by_time([t.counters for t in traces], recode),
        joined_clocks=tuple(clock for t in traces for clock in t.clocks),
        tensors=tuple(window for t in traces for window in t.tensors),
        metadata=_joined_metadata([t.metadata for t in traces]),
        problems=Problems(
            truncated=any(t.problems.truncated for t in traces),
            repaired_events=sum(t.problems.repaired_events for t in traces),
            dropped_events=sum(t.problems.dropped_events for t in traces),
            bad_durations=sum(t.problems.bad_durations for t in traces),
        ),
    )


def _merged(lists: list[tuple[Any, ...]], key: Callable[[Any], Any]) -> tuple[list[Any], list[_Codes]]:
    """Return one list without repetitions, and for each list the new code of each old one."""
    codes: dict[Any, int] = {}
    values: list[Any] = []
    maps = []
    for part in lists:
        new = np.empty(len(part), dtype=np.int32)
        for old, value in enumerate(part):
            code = codes.setdefault(key(value), len(values))
            if code == len(values):
                values.append(value)
            new[old] = code
        maps.append(new)
    return values, maps


def _with_names(threads: list[Thread], traces: Sequence[Trace]) -> list[Thread]:
    named = {(thread.process, thread.thread): thread.name for t in traces for thread in t.threads if thread.name}
    return [replace(thread, name=named.get((thread.process, thread.thread), "")) for thread in threads]


def _columns(tables: Sequence[Any], recode: list[dict[str, _Codes]]) -> dict[str, NDArray[Any]]:
    """Return all columns end to end, with codes of the merged lists."""
    joined = {}
    for column in fields(tables[0]):
        parts = [getattr(table, column.name) for table in tables]
        if column.name in CODED_COLUMNS:
            maps = [codes[CODED_COLUMNS[column.name]] for codes in recode]
            parts = [codes[part] if len(part) else part for codes, part in zip(maps, parts, strict=True)]
        joined[column.name] = np.concatenate(parts)
    return joined


def _joined(tables: Sequence[_Table], recode: list[dict[str, _Codes]]) -> tuple[_Table, NDArray[np.intp]]:
    columns = _columns(tables, recode)
    order = time_order(columns["start_ns"], columns["end_ns"])
    if order is None:
        order = np.arange(len(columns["start_ns"]))
    else:
        columns = {name: column[order] for name, column in columns.items()}
    return type(tables[0])(**columns), order


_Sparse = TypeVar("_Sparse", Collectives, GraphRegions)


def _joined_by_device_row(
    tables: Sequence[_Sparse],
    traces: Sequence[Trace],
    recode: list[dict[str, _Codes]],
    device_order: NDArray[np.intp],
) -> _Sparse:
    columns = _columns(tables, recode)
    offsets = np.cumsum([0, *(len(t.device) for t in traces[:-1])])
    shifts = np.repeat(offsets, [len(table) for table in tables])
    place = np.empty(len(device_order), dtype=np.int32)
    place[device_order] = np.arange(len(device_order), dtype=np.int32)
    columns["device_row"] = place[columns["device_row"] + shifts]
    order = np.argsort(columns["device_row"], kind="stable")
    return type(tables[0])(**{name: column[order] for name, column in columns.items()})


_Sampled = TypeVar("_Sampled", MemoryEvents, Counters)


def _joined_by_time(tables: Sequence[_Sampled], recode: list[dict[str, _Codes]]) -> _Sampled:
    columns = _columns(tables, recode)
    order = np.argsort(columns["time_ns"], kind="stable")
    return type(tables[0])(**{name: column[order] for name, column in columns.items()})


def _joined_metadata(parts: list[Metadata]) -> Metadata:
    joined = parts[0]
    for part in parts[1:]:
        missing = {
            item.name: getattr(part, item.name)
            for item in fields(Metadata)
            if getattr(joined, item.name) in (None, (), 0, False) and getattr(part, item.name) is not None
        }
        # A rank of 0 and a flag that is off are recorded values, not gaps.
        stated = {name for name in missing if getattr(joined, name) in (0, False) and name not in _UNSTATED_WHEN_ZERO}
        joined = replace(joined, **{name: value for name, value in missing.items() if name not in stated})
    tokens = [part.tokens for part in parts if part.tokens is not None]
    return replace(joined, tokens=functools.reduce(Tokens.joined, tokens)) if tokens else joined


_UNSTATED_WHEN_ZERO = frozenset({"base_time_ns", "is_hip"})
