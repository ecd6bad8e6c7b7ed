"""Waits of the training thread: for the device (syncs), and long stretches without an operator (pauses)."""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.intervals import (
    EMPTY,
    averaged_steps,
    averaged_time,
    cached_per_trace,
    in_averaged_host_steps,
    merge,
    subtract,
    sum_by,
    union,
)
from lightning_perf.analysis.steps.breakdown import (
    OWN_PREFIX,
    PHASES,
    RuntimeKind,
    host_collectives,
    host_sets,
    marks_by_phase,
    phase_timeline,
    phases_at,
    runtime_kinds,
)
from lightning_perf.analysis.steps.idle import device_busy
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int64Array
from lightning_perf.trace.indexing import at_rows, innermost_marked
from lightning_perf.trace.trace import Trace

_FUNCTION = re.compile(r"^(?P<path>[^<>\n]+\.py)\((?P<line>\d+)\): (?P<name>.+)$")

COLLECTION = "Python GC"
"""A garbage collection among the functions, as torch names it from 2.15 on."""

_LIBRARIES = {
    "PIL", "functorch", "lightning", "lightning_fabric", "lightning_perf", "lightning_utilities", "numpy", "pandas",
    "pytorch_lightning", "rich", "torch", "torchmetrics", "torchvision", "tqdm",
}  # fmt: skip
"""Packages that a training is written with. The recorder shortens their paths to the part below ``site-packages``."""

_INSTALLED = re.compile(r"(^|/)(site-packages|dist-packages|lib/python3\.\d+|[Pp]ython[^/]*/Lib)/")


def is_user_function(name: str) -> bool:
    """Return whether the recorder's name of a Python function is of the user's own code.

    Example:
        >>> is_user_function("train.py(20): training_step"), is_user_function("torch/nn/modules/module.py(9): forward")
        (True, False)
        >>> is_user_function("contextlib.py(104): __init__"), is_user_function("<built-in function sleep>")
        (False, False)
    """
    found = _FUNCTION.match(name)
    path = found["path"].replace("\\", "/") if found is not None else ""  # recorded on Windows
    if found is None or _INSTALLED.search(path) or found["name"] == "<module>":
        return False
    top = path.lstrip("./").split("/")[0].removesuffix(".py")
    return top not in _LIBRARIES and top not in sys.stdlib_module_names


def function_text(name: str) -> str:
    """Return the recorder's name of a Python function as text for a reader.

    Example:
        >>> function_text("Python GC")
        "Python's garbage collection"
        >>> function_text("src/train.py(20): training_step")
        'training_step (src/train.py:20)'
    """
    if name == COLLECTION:
        return "Python's garbage collection"
    found = _FUNCTION.match(name)
    return name if found is None else f"{found['name']} ({found['path']}:{found['line']})"


@cached_per_trace
def _user_rows(trace: Trace) -> Int64Array:
    """The rows of the user's functions, and of garbage collections, in `Trace.python`."""
    mine = trace.names_where(lambda name: name == COLLECTION or is_user_function(name))
    return np.flatnonzero(mine[trace.python.name]) if len(trace.python) else np.empty(0, dtype=np.int64)


def user_function(trace: Trace, thread: int, start_ns: int, end_ns: int) -> str | None:
    """Return the innermost user's function, or collection, that covers more than half of a stretch of time."""
    rows, table = _user_rows(trace), trace.python
    rows = rows[: int(np.searchsorted(table.start_ns[rows], end_ns, side="left"))]
    rows = rows[(table.end_ns[rows] > start_ns) & (table.thread[rows] == thread)]
    overlap = np.minimum(table.end_ns[rows], end_ns) - np.maximum(table.start_ns[rows], start_ns)
    covering = rows[2 * overlap > end_ns - start_ns]
    return trace.names[int(table.name[covering[-1]])] if len(covering) else None


LONG_NS = 1_000_000
"""Length from which a stretch without operators counts as a pause. Between two operators the framework needs
microseconds."""

MAX_LOOKED_UP = 50
"""Pauses of a phase, longest first, in which the user's function is looked up."""


class PhasePause(Struct, frozen=True):
    """The pauses of one phase, over the averaged steps.

    Attributes:
        phase: The phase of the step, one of `lightning_perf.analysis.steps.breakdown.PHASES`.
        mean_ns: Their time per step.
        median_ns: Their time in the median step.
        least_ns: Their time in the step with the shortest pauses.
        function: The user's function with most of the time, as the recorder names it; ``None`` without stacks.
        after: The operator after which most of the time passes; ``None`` at the start of the recording.
        before: The operator that follows it; ``None`` at its end.
    """

    phase: str
    mean_ns: float
    median_ns: float
    least_ns: int
    function: str | None
    after: str | None = None
    before: str | None = None


class Pauses(Struct, frozen=True):
    """Stretches of at least 1 ms in which the host runs neither operators nor runtime calls nor collectives.

    Attributes:
        phases: The phases with pauses, by the time in the median step.
    """

    phases: tuple[PhasePause, ...]

    def phase(self, name: str) -> PhasePause | None:
        """Return the pauses of a phase, or None if it has none."""
        return next((pause for pause in self.phases if pause.phase == name), None)


def pauses(trace: Trace) -> Pauses | None:
    """Find the pauses of the averaged steps; None without operators, or for a truncated recording."""
    averaged = np.flatnonzero(averaged_steps(trace))
    if not len(averaged) or not len(trace.operators) or trace.problems.lacks_work:
        return None
    steps = trace.steps
    sets = (active for name, active in host_sets(trace).items() if name != "input")
    busy = union(*sets, host_collectives(trace))
    quiet = subtract(averaged_time(trace), busy)
    long = quiet.end_ns - quiet.start_ns >= LONG_NS
    start, end = quiet.start_ns[long], quiet.end_ns[long]
    # Cut where the phase or the step changes: each piece then lies in one step and one phase.
    begin, _ = phase_timeline(trace)
    edges = np.unique(np.concatenate((begin, steps.start_ns, steps.end_ns, start, end)))
    row = np.searchsorted(start, edges, side="right") - 1
    inside = (row >= 0) & (edges < end[np.maximum(row, 0)]) if len(start) else np.zeros(len(edges), dtype=np.bool_)
    piece_start, piece_end = edges[inside], np.append(edges[1:], edges[-1:])[inside]
    long = piece_end - piece_start >= LONG_NS
    piece_start, piece_end = piece_start[long], piece_end[long]
    of_step = np.searchsorted(steps.start_ns, piece_start, side="right") - 1
    of_phase = phases_at(trace, piece_start)
    found = []
    for phase in np.unique(of_phase).tolist():
        rows = np.flatnonzero(of_phase == phase)
        time_ns = sum_by(of_step[rows], piece_end[rows] - piece_start[rows], len(steps))[averaged]
        pieces = [(int(piece_start[row]), int(piece_end[row])) for row in rows]
        after, before = _neighbours(trace, pieces)
        found.append(
            PhasePause(
                phase=PHASES[phase],
                mean_ns=float(time_ns.mean()),
                median_ns=float(np.median(time_ns)),
                least_ns=int(time_ns.min()),
                function=_main_function(trace, pieces),
                after=after,
                before=before,
            )
        )
    found.sort(key=lambda pause: (-pause.median_ns, -pause.mean_ns, pause.phase))
    return Pauses(tuple(found))


def _main_function(trace: Trace, stretches: list[tuple[int, int]]) -> str | None:
    if not len(trace.python):
        return None
    time_ns: Counter[str] = Counter()
    for start, end in sorted(stretches, key=lambda stretch: stretch[0] - stretch[1])[:MAX_LOOKED_UP]:
        function = user_function(trace, trace.steps.thread, start, end)
        if function is not None:
            time_ns[function] += end - start
    return min(time_ns, key=lambda name: (-time_ns[name], name)) if time_ns else None


def _neighbours(trace: Trace, stretches: list[tuple[int, int]]) -> tuple[str | None, str | None]:
    """Return the outermost operators of the training thread around the pauses with most of the time."""
    table = trace.operators
    rows = np.flatnonzero((table.thread == trace.steps.thread) & (trace.links.operator_parent < 0))
    starts, names = table.start_ns[rows], [None, *(trace.names[code] for code in table.name[rows].tolist()), None]
    began = np.searchsorted(starts, np.array(stretches, dtype=np.int64), side="left").tolist()
    time_ns: Counter[tuple[str | None, str | None]] = Counter()
    for (start, end), (last, following) in zip(stretches, began, strict=True):
        time_ns[names[last], names[following + 1]] += end - start
    return min(time_ns, key=lambda pair: (-time_ns[pair], str(pair))) if time_ns else (None, None)


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
        phase: The phase of the step that the host was in, one of `lightning_perf.analysis.steps.breakdown.PHASES`.
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
    calls = np.flatnonzero((kinds == RuntimeKind.SYNC) & in_averaged_host_steps(trace, runtime.start_ns))
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
    kept = (later >= end) & in_averaged_host_steps(trace, start)
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
