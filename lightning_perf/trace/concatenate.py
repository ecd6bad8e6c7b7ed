"""Joins several recordings of one rank into one `Trace`."""

from __future__ import annotations

import functools
from collections.abc import Sequence, Sized
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from lightning_perf.trace.columns import CODED_COLUMNS, Thread
from lightning_perf.trace.description import Metadata, Problems, Tokens
from lightning_perf.trace.indexing import time_order
from lightning_perf.trace.on_disk import on_disk
from lightning_perf.trace.trace import Trace

_Codes = NDArray[np.int32]
_Columns = dict[str, NDArray[Any]]

_LISTS = ("names", "threads", "type_lists", "shape_lists", "stride_lists", "value_lists")
_SPANS = ("operators", "annotations", "python", "runtime", "device")
_SAMPLES = ("memory", "counters")
_DEVICE_FACTS = ("collectives", "regions")

_MISSING_AT_ZERO = ("base_time_ns", "is_hip")


def concatenate(traces: Sequence[Trace]) -> Trace:
    """Join the windows of one rank, or the parts of a split file, into one trace.

    Events are merged in time order, so that splitting a file changes nothing. Correlation numbers may restart in a
    later window. So device work belongs to the nearest call before it. Each metadata field is the first one recorded,
    and tokens are summed.
    """
    if not traces:
        raise ValueError("no trace to join: pass at least one")
    if len(traces) == 1:
        return traces[0]
    traces = sorted(traces, key=lambda trace: trace.begin_ns)
    merged = {name: _merged([getattr(t, name) for t in traces]) for name in _LISTS}
    recode = [{name: maps[at] for name, (_, maps) in merged.items()} for at in range(len(traces))]
    lists: dict[str, Any] = {name: tuple(values) for name, (values, _) in merged.items()}
    named = {(thread.process, thread.thread): thread.name for t in traces for thread in t.threads if thread.name}
    lists["threads"] = tuple(
        replace(thread, name=named.get((thread.process, thread.thread), "")) for thread in lists["threads"]
    )
    tables = {name: [getattr(t, name) for t in traces] for name in (*_SPANS, *_SAMPLES, *_DEVICE_FACTS)}
    columns = {name: _columns(parts, recode) for name, parts in tables.items()}
    orders: dict[str, Any] = {}
    for name in _SPANS:
        order = time_order(columns[name]["start_ns"], columns[name]["end_ns"])
        orders[name] = slice(None) if order is None else order
    device_order = np.arange(len(columns["device"]["start_ns"]))[orders["device"]]
    for name in _DEVICE_FACTS:
        columns[name]["device_row"] = _moved_rows(columns[name]["device_row"], tables[name], traces, device_order)
    orders |= {name: np.argsort(columns[name]["time_ns"], kind="stable") for name in _SAMPLES}
    orders |= {name: np.argsort(columns[name]["device_row"], kind="stable") for name in _DEVICE_FACTS}
    joined: dict[str, Any] = {
        name: type(parts[0])(**{column: on_disk(values[orders[name]]) for column, values in columns[name].items()})
        for name, parts in tables.items()
    }
    return Trace(
        sources=tuple(source for t in traces for source in t.sources),
        **lists,
        **joined,
        joined_clocks=tuple(clock for t in traces for clock in t.clocks),
        tensors=tuple(window for t in traces for window in t.tensors),
        metadata=_joined_metadata([t.metadata for t in traces]),
        problems=functools.reduce(Problems.joined, (t.problems for t in traces)),
    )


def _merged(lists: list[tuple[Any, ...]]) -> tuple[list[Any], list[_Codes]]:
    """Return one list without repetitions, and for each list the new code of each old one."""
    codes: dict[Any, int] = {}
    values: list[Any] = []
    maps = []
    for part in lists:
        new = np.empty(len(part), dtype=np.int32)
        for old, value in enumerate(part):
            key = (value.process, value.thread) if isinstance(value, Thread) else value
            code = codes.setdefault(key, len(values))
            if code == len(values):
                values.append(value)
            new[old] = code
        maps.append(new)
    return values, maps


def _columns(tables: Sequence[Any], recode: list[dict[str, _Codes]]) -> _Columns:
    """Return all columns end to end, with codes of the merged lists."""
    joined = {}
    for name in tables[0].__struct_fields__:
        parts = [getattr(table, name) for table in tables]
        if name in CODED_COLUMNS:
            maps = [codes[CODED_COLUMNS[name]] for codes in recode]
            parts = [codes[part] if len(part) else part for codes, part in zip(maps, parts, strict=True)]
        joined[name] = on_disk(np.concatenate(parts))
    return joined


def _moved_rows(
    device_row: NDArray[np.int32], tables: Sequence[Sized], traces: Sequence[Trace], device_order: NDArray[np.intp]
) -> NDArray[np.int32]:
    """Return the rows of the joined device table for those of the table of each trace."""
    offsets = np.cumsum([0, *(len(t.device) for t in traces[:-1])])
    place = np.empty(len(device_order), dtype=np.int32)
    place[device_order] = np.arange(len(device_order), dtype=np.int32)
    moved: NDArray[np.int32] = place[device_row + np.repeat(offsets, [len(table) for table in tables])]
    return moved


def _joined_metadata(parts: list[Metadata]) -> Metadata:
    recorded: dict[str, Any] = {}
    for name in Metadata.__struct_fields__:
        # A rank of 0 and a flag that is off are recorded values, not gaps.
        gaps = (None, (), 0) if name in _MISSING_AT_ZERO else (None, ())
        found = [value for part in parts if (value := getattr(part, name)) not in gaps]
        if found:
            recorded[name] = found[0]
    joined = replace(parts[0], **recorded)
    tokens = [part.tokens for part in parts if part.tokens is not None]
    return replace(joined, tokens=functools.reduce(Tokens.joined, tokens)) if tokens else joined
