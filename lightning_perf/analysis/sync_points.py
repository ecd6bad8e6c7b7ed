"""Sync points: where the host waits for the device, and how long the device then waits for the host."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from lightning_perf.analysis.gaps import device_busy
from lightning_perf.analysis.intervals import EMPTY, Intervals, merge, subtract
from lightning_perf.analysis.marks import marks_by_phase
from lightning_perf.analysis.runtime_calls import RuntimeKind, runtime_kinds
from lightning_perf.analysis.windows import averaged_steps, in_averaged_steps
from lightning_perf.trace.columns import NO_ROW, Int64Array, Trace

__all__ = ["SyncPoint", "SyncPoints", "sync_points"]

_LISTED = 5


@dataclass(frozen=True)
class SyncPoint:
    """All waits from one place.

    Attributes:
        operator: The outermost operator that waited (``aten::item``, ``aten::nonzero``, …); ``None`` for a call of the
            runtime outside of operators (``torch.cuda.synchronize()``).
        call: The runtime call that waited longest.
        calls: How many waits there were; calls of one operator with no launch between them are one.
        wait_ns: How long the host was inside them.
        drained_ns: How long the device then had nothing to do, until the host had issued work again.
        regained_ns: What the step would win without them: the host would be ahead by its wait, so the device's time
            without work shrinks by that at most.
    """

    operator: str | None
    call: str
    calls: int
    wait_ns: int
    drained_ns: int
    regained_ns: int


@dataclass(frozen=True)
class SyncPoints:
    """Waits of the host for the device, over the averaged steps.

    Attributes:
        steps: Steps that the figures are over.
        calls: Waits: synchronizing calls of the runtime, those of one operator with no launch between them once.
        wait_ns: Host time inside them.
        drained_ns: Device-idle time after them, waits for input left out.
        regained_ns: What the steps would win without them, at most.
        points: Where they come from, the costliest first, at most five.
    """

    steps: int
    calls: int
    wait_ns: int
    drained_ns: int
    regained_ns: int
    points: tuple[SyncPoint, ...]


def sync_points(trace: Trace) -> SyncPoints | None:
    """Find where the host waits for the device, and what that costs.

    Args:
        trace: The recording.

    Returns:
        The figures, or ``None`` for a recording without a device.
    """
    if not len(trace.device):
        return None
    runtime, kinds = trace.runtime, runtime_kinds(trace)
    calls = np.flatnonzero((kinds == RuntimeKind.SYNC) & in_averaged_steps(trace, runtime.start_ns))
    # `.item()` copies to pageable memory and then waits for the stream: one wait, in two calls.
    first = _first_calls(trace, calls, runtime.start_ns[kinds == RuntimeKind.LAUNCH])
    rows = calls[first]
    wait = np.add.reduceat(runtime.duration_ns[calls], first) if len(first) else runtime.duration_ns[calls]
    last = np.append(first[1:], len(calls))[: len(first)] - 1
    drained = _drained_ns(trace, rows, runtime.end_ns[calls[last]])
    regained = np.minimum(drained, wait)
    operator = _outermost(trace, rows)
    groups: dict[int, list[int]] = defaultdict(list)
    for position, code in enumerate(operator.tolist()):
        groups[code].append(position)
    points = [
        SyncPoint(
            operator=trace.names[code] if code != NO_ROW else None,
            call=trace.names[int(runtime.name[rows[positions[int(np.argmax(wait[positions]))]]])],
            calls=len(positions),
            wait_ns=int(wait[positions].sum()),
            drained_ns=int(drained[positions].sum()),
            regained_ns=int(regained[positions].sum()),
        )
        for code, positions in groups.items()
    ]
    points.sort(key=lambda point: (-point.regained_ns, -point.wait_ns, point.operator or ""))
    return SyncPoints(
        steps=int(averaged_steps(trace).sum()),
        calls=len(rows),
        wait_ns=int(wait.sum()),
        drained_ns=int(drained.sum()),
        regained_ns=int(regained.sum()),
        points=tuple(points[:_LISTED]),
    )


def _first_calls(trace: Trace, calls: Int64Array, launched_ns: Int64Array) -> Int64Array:
    """The places in ``calls`` where a wait begins: another operator's call, or one with a launch before it."""
    if not len(calls):
        return np.zeros(0, dtype=np.int64)
    operator = trace.links.runtime_operator[calls]
    launches_before = np.searchsorted(launched_ns, trace.runtime.start_ns[calls])
    begins = (operator[1:] != operator[:-1]) | (operator[1:] == NO_ROW) | np.diff(launches_before).astype(np.bool_)
    return np.flatnonzero(np.append(True, begins))


def _drained_ns(trace: Trace, rows: Int64Array, end: Int64Array) -> Int64Array:
    """Device-idle time from the end of each wait until new work starts, the next wait or the end of the step."""
    steps = trace.steps
    step = np.searchsorted(steps.start_ns, trace.runtime.start_ns[rows], side="right") - 1
    until = steps.end_ns[step] if len(rows) else end
    following = np.searchsorted(trace.device.start_ns, end, side="left")
    starts = np.append(trace.device.start_ns, np.iinfo(np.int64).max)
    until = np.minimum(until, starts[following])
    if len(rows) > 1:
        until[:-1] = np.minimum(until[:-1], trace.runtime.start_ns[rows][1:])
    until = np.maximum(until, end)
    window = Intervals(steps.start_ns, steps.end_ns) if len(steps) else EMPTY
    idle = subtract(subtract(merge(window.start_ns, window.end_ns), device_busy(trace)), _fetching(trace))
    covered: Int64Array = idle.covered(end, until)
    return covered


def _fetching(trace: Trace) -> Intervals:
    fetch = marks_by_phase(trace).get("fetch")
    return EMPTY if fetch is None else merge(fetch.start_ns, fetch.end_ns)


def _outermost(trace: Trace, rows: Int64Array) -> Int64Array:
    """The name of the outermost operator around each call; nodes of the backward graph do not count as one."""
    current = trace.links.runtime_operator[rows].astype(np.int64)
    named = np.full(len(rows), NO_ROW, dtype=np.int64)
    node = np.append(trace.names_where(lambda name: name.startswith("autograd::")), False)
    while (current != NO_ROW).any():
        known = current != NO_ROW
        names = trace.operators.name[current[known]].astype(np.int64)
        named[known] = np.where(node[names], named[known], names)
        current[known] = trace.links.operator_parent[current[known]]
    return named
