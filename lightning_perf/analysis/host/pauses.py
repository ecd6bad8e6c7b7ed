"""Pauses: long stretches in which the training thread runs no operator, by the phase of the step."""

from __future__ import annotations

from collections import Counter

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.core.averaged_steps import averaged_steps, averaged_time
from lightning_perf.analysis.core.intervals import subtract, union
from lightning_perf.analysis.host.user_code import user_function
from lightning_perf.analysis.steps.categories import host_collectives, host_sets
from lightning_perf.analysis.steps.phase_timeline import PHASES, phase_timeline, phases_at
from lightning_perf.trace.trace import Trace

LONG_NS = 1_000_000
"""Length from which a stretch without operators counts as a pause. Between two operators the framework needs
microseconds."""

MAX_LOOKED_UP = 50
"""Pauses of a phase, longest first, in which the user's function is looked up."""


class PhasePause(Struct, frozen=True):
    """The pauses of one phase, over the averaged steps.

    Attributes:
        phase: The phase of the step, one of `lightning_perf.analysis.steps.phase_timeline.PHASES`.
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
        per_step = np.zeros(len(steps), dtype=np.int64)
        np.add.at(per_step, of_step[rows], piece_end[rows] - piece_start[rows])
        time_ns = per_step[averaged]
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
