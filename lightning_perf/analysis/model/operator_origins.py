"""Where operators come from: the shapes of their inputs and the Python code that calls them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lightning_perf.analysis.core.arrays import sum_by
from lightning_perf.analysis.model.call_tree import call_paths
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int64Array
from lightning_perf.trace.indexing import distinct, enclosing_rows, parent_rows
from lightning_perf.trace.trace import Trace

MOST_LISTED = 3
MOST_FRAMES = 12

_FRAME = re.compile(r".+\(\d+\): ")
"""The recorder writes ``file(line): function`` for Python code, and ``<built-in …>`` for functions of C."""


@dataclass(frozen=True)
class CallsByShape:
    """The calls of an operator with one list of input shapes.

    Attributes:
        shapes: Dimensions of the inputs as JSON text.
        calls: Calls.
        host_self_ns: Host self time of these calls.
        device_self_ns: Device self time of these calls; None without a device.
    """

    shapes: str
    calls: int
    host_self_ns: int
    device_self_ns: int | None


@dataclass(frozen=True)
class CallsByStack:
    """The calls of an operator from one place in Python.

    Attributes:
        frames: The Python frames around the calls, the innermost first, at most 12.
        calls: Calls.
        host_self_ns: Host self time of these calls.
        device_self_ns: Device self time of these calls; None without a device.
    """

    frames: tuple[str, ...]
    calls: int
    host_self_ns: int
    device_self_ns: int | None


def by_shape(
    trace: Trace, counted: BoolArray, group: Int64Array, host_self: Int64Array, device_self: Int64Array
) -> dict[int, list[CallsByShape]]:
    """Return for each group of operators the shapes that cost most, at most three.

    Returns:
        The shapes by group; nothing for groups without recorded shapes.
    """
    rows = np.flatnonzero(counted & (trace.operators.input_shapes > 0))
    used, place = distinct(trace.operators.input_shapes[rows])
    # Shapes with equal times are in the order of their text: their codes depend on the order of the events.
    listed_shapes = sorted(trace.shape_lists[code] for code in used.tolist())
    order = {shapes: at for at, shapes in enumerate(listed_shapes)}
    codes = np.array([order[trace.shape_lists[code]] for code in used.tolist()], dtype=np.int64)[place]
    found: defaultdict[int, list[CallsByShape]] = defaultdict(list)
    for g, code, costs in _most(trace, rows, codes, group, host_self, device_self):
        found[g].append(CallsByShape(listed_shapes[code], *costs))
    return found


def by_stack(
    trace: Trace, counted: BoolArray, group: Int64Array, host_self: Int64Array, device_self: Int64Array
) -> dict[int, list[CallsByStack]]:
    """Return for each group of operators the Python stacks that cost most, at most three.

    Returns:
        The stacks by group; nothing for recordings without Python functions.
    """
    python = trace.python
    if not len(python):
        return {}
    parents = parent_rows(python)
    frame = enclosing_rows(trace.operators, python, parents)
    rows = np.flatnonzero(counted & (frame >= 0))
    wanted = np.zeros(len(python), dtype=np.bool_)
    above = np.unique(frame[rows])
    while len(above):  # as many rounds as functions are nested
        wanted[above] = True
        above = np.unique(parents[above])
        above = above[above >= 0]
        above = above[~wanted[above]]
    paths = call_paths(python.name, parents, wanted)
    node = paths.node_of_row[frame[rows]].astype(np.int64)
    found: defaultdict[int, list[CallsByStack]] = defaultdict(list)
    for g, at, costs in _most(trace, rows, node, group, host_self, device_self):
        frames: list[str] = []
        while at != NO_ROW and len(frames) < MOST_FRAMES:
            name = trace.names[paths.name[at]]
            if _FRAME.match(name[:1000]):
                frames.append(name)
            at = int(paths.parent[at])
        if frames:
            found[g].append(CallsByStack(tuple(frames), *costs))
    return found


def _most(
    trace: Trace, rows: Int64Array, key: Int64Array, group: Int64Array, host_self: Int64Array, device_self: Int64Array
) -> Iterator[tuple[int, int, tuple[int, int, int | None]]]:
    """Yield the keys of each group with the longest device and then host time: (group, key, (calls, host, device))."""
    size = np.int64(int(key.max(initial=0)) + 1)
    pairs, index = distinct(group[rows].astype(np.int64) * size + key)
    calls = np.bincount(index, minlength=len(pairs))
    host, device = sum_by(index, host_self[rows], len(pairs)), sum_by(index, device_self[rows], len(pairs))
    listed: Counter[int] = Counter()
    for at in np.lexsort((pairs, -host, -device)).tolist():
        g, code = divmod(int(pairs[at]), int(size))
        listed[g] += 1
        if listed[g] <= MOST_LISTED:
            yield g, code, (int(calls[at]), int(host[at]), int(device[at]) if len(trace.device) else None)
