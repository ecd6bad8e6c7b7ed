"""Sync points: places where the host waits for the device, and how long the device then waits for the host."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.core.intervals import EMPTY, averaged_steps, in_averaged_steps, merge, subtract
from lightning_perf.analysis.host.pauses import user_function
from lightning_perf.analysis.steps.breakdown import RuntimeKind, runtime_kinds
from lightning_perf.analysis.steps.idle import device_busy
from lightning_perf.analysis.steps.phase_timeline import OWN_PREFIX, PHASES, marks_by_phase, phases_at
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int64Array
from lightning_perf.trace.indexing import at_rows, innermost_marked
from lightning_perf.trace.trace import Trace

_LISTED = 5


class SyncPoint(Struct, frozen=True):
    """All waits from one place.

    Attributes:
        operator: The outermost operator that waited (``aten::item``, ``aten::nonzero``, …); ``None`` for a call of the
            runtime outside of operators (``torch.cuda.synchronize()``).
        call: The runtime call that waited longest.
        calls: The number of waits. Waits without a launch between them count once, for the first operator, which
            emptied the queue.
        wait_ns: Host time inside them.
        drained_ns: How long the device then had nothing to do until the host had issued work again, without waits for
            input.
        regained_ns: The most that the step could save without them. The host would be ahead by its wait, so the
            device's idle time until the next wait, for input included, shrinks by as much.
        phase: The phase of the step that the host was in, one of `lightning_perf.analysis.steps.phases.PHASES`.
        function: The user's function that waited longest, as the recorder names it; ``None`` without stacks.
        by_scaler: Whether a `GradScaler` waited, to read if gradients overflowed before the optimizer steps.
    """

    operator: str | None
    call: str
    calls: int
    wait_ns: int
    drained_ns: int
    regained_ns: int
    phase: str = "other"
    function: str | None = None
    by_scaler: bool = False


class SyncPoints(Struct, frozen=True):
    """Waits of the host for the device, over the averaged steps.

    Attributes:
        steps: Steps that the figures are over.
        wait_ns: Host time inside them.
        points: The places, the largest saving first, at most five.
    """

    steps: int
    wait_ns: int
    points: tuple[SyncPoint, ...]


def sync_points(trace: Trace) -> SyncPoints | None:
    """Find the places where the host waits for the device, and their cost; None without a device."""
    if not len(trace.device):
        return None
    runtime, kinds = trace.runtime, runtime_kinds(trace)
    calls = np.flatnonzero((kinds == RuntimeKind.SYNC) & in_averaged_steps(trace, runtime.start_ns))
    # `.item()` copies to pageable memory and then waits for the stream. A second wait then finds an empty stream.
    launched_before = np.searchsorted(runtime.start_ns[kinds == RuntimeKind.LAUNCH], runtime.start_ns[calls])
    first = np.flatnonzero(np.diff(launched_before, prepend=-1))
    rows = calls[first]
    wait = np.add.reduceat(runtime.duration_ns[calls], first) if len(first) else runtime.duration_ns[calls]
    last = np.append(first[1:], len(calls))[: len(first)] - 1
    drained, without_work, told = _drained_ns(trace, rows, runtime.end_ns[calls[last]])
    regained = np.minimum(without_work, wait)
    operator = _outermost(trace, rows)
    names = at_rows(trace.operators.name, operator, NO_ROW)
    places = names, phases_at(trace, runtime.start_ns[rows]), np.isin(operator, _reads_of_scalers(trace))
    groups: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for position, place in enumerate(zip(*(column.tolist() for column in places), strict=True)):
        groups[place].append(position)
    points = []
    for (code, phase, of_scaler), positions in groups.items():
        # At the end of the recording, the start of the next work is unknown: take that of the other waits there.
        seen = [position for position in positions if told[position]] or positions
        longest = int(rows[positions[int(np.argmax(wait[positions]))]])
        begin_ns, end_ns = int(runtime.start_ns[longest]), int(runtime.end_ns[longest])
        points.append(
            SyncPoint(
                operator=trace.names[code] if code != NO_ROW else None,
                phase=PHASES[phase],
                by_scaler=of_scaler,
                function=user_function(trace, int(runtime.thread[longest]), begin_ns, end_ns),
                call=trace.names[int(runtime.name[longest])],
                calls=len(positions),
                wait_ns=int(wait[positions].sum()),
                drained_ns=int(drained[seen].sum()) * len(positions) // len(seen),
                regained_ns=int(regained[seen].sum()) * len(positions) // len(seen),
            )
        )
    points.sort(key=lambda point: (-point.regained_ns, -point.wait_ns, point.operator or "", point.phase))
    return SyncPoints(
        steps=int(averaged_steps(trace).sum()),
        wait_ns=int(wait.sum()),
        points=tuple(points[:_LISTED]),
    )


def _drained_ns(trace: Trace, rows: Int64Array, end: Int64Array) -> tuple[Int64Array, Int64Array, BoolArray]:
    """Return device-idle time from the end of each wait until new work starts, until the next wait, and if it is known.

    The first is without waits for input. Both continue into the next step. The end of the recording cuts them off.
    """
    steps = trace.steps
    step = np.searchsorted(steps.start_ns, trace.runtime.start_ns[rows], side="right") - 1
    # Work of a later window has nothing to do with it.
    goes_on = np.append(np.diff(steps.number) == 1, False)[step]
    never = np.iinfo(np.int64).max
    until = steps.end_ns[np.where(goes_on, step + 1, step)]
    until = np.maximum(np.minimum(until, np.append(trace.runtime.start_ns[rows][1:], never)), end)
    next_work = np.append(trace.device.start_ns, never)[np.searchsorted(trace.device.start_ns, end, side="left")]
    at_work = np.minimum(until, next_work)
    idle = subtract(merge(steps.start_ns, steps.end_ns), device_busy(trace))
    told = goes_on | (next_work < steps.end_ns[step])
    fetch = marks_by_phase(trace).get("fetch")
    fetching = EMPTY if fetch is None else merge(fetch.start_ns, fetch.end_ns)
    return subtract(idle, fetching).covered(end, at_work), idle.covered(end, until), told


def _outermost(trace: Trace, rows: Int64Array) -> Int64Array:
    """Return the outermost operator around each call. Nodes of the backward graph do not count as one."""
    parents = trace.links.operator_parent
    counts = ~trace.names_where(lambda name: name.startswith("autograd::"))[trace.operators.name]
    outermost = counts & (innermost_marked(parents, parents, counts) == NO_ROW)
    return innermost_marked(parents, trace.links.runtime_operator[rows], outermost)


_CHECK, _UPDATE = "aten::_amp_foreach_non_finite_check_and_unscale_", "aten::_amp_update_scale_"


def _reads_of_scalers(trace: Trace) -> Int64Array:
    """Find the operators by which a `GradScaler` reads whether gradients overflowed (torch/amp/grad_scaler.py).

    Each is the last read between the check of the gradients and the step of the optimizer. If it skips that step,
    it only updates its scale. Reads before it, e.g. of the gradients' norm, are the user's.
    """
    operators, marks = trace.operators, trace.annotations
    read, check, update = (
        np.flatnonzero((operators.thread == trace.steps.thread) & trace.names_where(of.__eq__)[operators.name])
        for of in (_READ, _CHECK, _UPDATE)
    )
    step = trace.names_where(lambda name: name.startswith("Optimizer.step#"))[marks.name]
    ends = np.sort(np.concatenate((marks.start_ns[step], operators.start_ns[update])))
    checked = operators.start_ns[check]
    end = np.append(ends, 0)[np.searchsorted(ends, checked)]
    last = read[np.searchsorted(operators.start_ns[read], end) - 1] if len(read) else read
    return last[operators.start_ns[last] > checked] if len(last) else last


_BROADCAST, _READ = "c10d::broadcast_", "aten::item"


class StopFlags(Struct, frozen=True):
    """Broadcasts of a flag that the host waits for, over the averaged steps.

    Attributes:
        steps: Steps that the figures are over.
        calls: Broadcasts.
        wait_ns: Time from the start of each broadcast until its value was read.
        exposed_ns: The part of that in which no device worked; all of it without a device.
    """

    steps: int
    calls: int
    wait_ns: int
    exposed_ns: int


def stop_flags(trace: Trace) -> StopFlags | None:
    """Find broadcasts of Lightning's stop flag.

    On more than one rank, Lightning 2.5.6 and later does ``torch.distributed.broadcast(flag, src=0)`` and
    ``flag.item()`` before each batch (``_TrainingEpochLoop._broadcast_sigterm_tensor`` in its source; issue #20825).
    It is recognized by its place: on the training thread, outside of all operators and phases, a broadcast followed
    only by the read of a value.
    """
    operators, marks = trace.operators, trace.annotations
    phases = np.flatnonzero(trace.names_where(lambda name: name.startswith(OWN_PREFIX))[marks.name])
    if not len(phases) or not len(operators):
        return None
    outermost = np.flatnonzero((trace.links.operator_parent < 0) & (operators.thread == trace.steps.thread))
    names = operators.name[outermost]
    is_broadcast = trace.names_where(lambda name: name == _BROADCAST)[names]
    is_read = trace.names_where(lambda name: name == _READ)[names]
    at = np.flatnonzero(is_broadcast[:-1] & is_read[1:])
    start, end = operators.start_ns[outermost[at]], operators.end_ns[outermost[at + 1]]
    busy = merge(marks.start_ns[phases], marks.end_ns[phases])
    phase = np.searchsorted(busy.end_ns, start, side="right")
    later = np.append(busy.start_ns, np.iinfo(np.int64).max)[phase]
    kept = (later >= end) & in_averaged_steps(trace, start)
    if not kept.any():
        return None
    waits = merge(start[kept], end[kept])
    exposed = subtract(waits, device_busy(trace)) if len(trace.device) else waits
    return StopFlags(
        steps=int(averaged_steps(trace).sum()),
        calls=int(kept.sum()),
        wait_ns=int((waits.end_ns - waits.start_ns).sum()),
        exposed_ns=int((exposed.end_ns - exposed.start_ns).sum()),
    )
