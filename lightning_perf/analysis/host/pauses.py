"""The user's functions behind events, and pauses: long stretches without an operator, by phase."""

from __future__ import annotations

import re
import sys
from collections import Counter

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.core.intervals import averaged_steps, averaged_time, cached_per_trace, subtract, union
from lightning_perf.analysis.steps.breakdown import host_sets
from lightning_perf.analysis.steps.phase_timeline import PHASES, phase_timeline, phases_at
from lightning_perf.trace.columns import Int64Array
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
        phase: The phase of the step, one of `lightning_perf.analysis.steps.phases.PHASES`.
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
    """Stretches of at least 1 ms in which the host runs neither operators nor runtime calls.

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
    busy = union(*(active for name, active in host_sets(trace).items() if name != "input"))
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
