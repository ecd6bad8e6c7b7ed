"""Phase × category: the step time by the phase of the training loop that issued it.

Device work belongs to the phase that launched it. If work of two phases runs at the same time in one category, the
phase that comes first in `PHASES` gets the time.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.intervals import Intervals, averaged_steps, exclusive_ns, find_row, merge, share_of
from lightning_perf.analysis.steps.breakdown import (
    CATEGORIES,
    DEVICE_CATEGORIES,
    HOST_CATEGORIES,
    PHASES,
    has_own_marks,
    host_sets,
    launch_phases,
    phase_timeline,
    phases_at,
)
from lightning_perf.trace.columns import Int64Array
from lightning_perf.trace.trace import Trace

LEAVES: tuple[str, ...] = (*DEVICE_CATEGORIES, *HOST_CATEGORIES)
"""The categories without parts, which are the columns of the matrix."""


class PhaseTime(Struct, frozen=True):
    """The time of one phase.

    Attributes:
        name: One of `PHASES`.
        mean_ns: Its time, mean over the averaged steps.
        share: Part of the wall time, 0 to 1; ``None`` when the file is truncated.
        category_mean_ns: Its time in each of `Phases.categories`, mean over the averaged steps; ``None`` if the
            category does not apply (device rows in a recording without a device).
    """

    name: str
    mean_ns: float
    share: float | None
    category_mean_ns: tuple[float | None, ...]


class Phases(Struct, frozen=True):
    """Phase × category.

    Attributes:
        categories: The names of the columns: the categories of the breakdown that have no parts.
        phases: One row for each of `PHASES`, in that order. All cells sum to the wall time. The cells of a column sum
            to the category's time in the breakdown.
        source: The source of the phases: ``"own"`` ranges of `PerfCallback`, or ``"foreign"`` marks of PyTorch or
            Lightning. Where no foreign mark names forward and backward, operators do.
    """

    categories: tuple[str, ...]
    phases: tuple[PhaseTime, ...]
    source: str

    def phase(self, name: str) -> PhaseTime:
        """Return the row of one phase, or raise a `KeyError` that lists them."""
        return find_row(self.phases, "phase", name)

    def time_ns(self, phase: str, category: str) -> float | None:
        """Return the mean time of a phase in a category or all parts of it; None if the category does not apply.

        Raises:
            KeyError: There is no phase of that name.
        """
        parts = {name for name, parent in CATEGORIES if category in (name, parent)}
        cells = zip(self.categories, self.phase(phase).category_mean_ns, strict=True)
        times = [time for name, time in cells if name in parts and time is not None]
        return sum(times) if times else None


def phases(trace: Trace) -> Phases:
    """Divide the time of each step among phases and categories, to the nanosecond."""
    times = phase_times(trace)
    averaged = averaged_steps(trace)
    count = max(int(averaged.sum()), 1)
    totals = times[averaged].sum(axis=0)
    wall = int(totals.sum())
    absent = [name in DEVICE_CATEGORIES and not len(trace.device) for name in LEAVES]
    rows = tuple(
        PhaseTime(
            name=name,
            mean_ns=int(totals[p].sum()) / count,
            share=share_of(trace, int(totals[p].sum()), wall),
            category_mean_ns=tuple(
                None if missing else total / count for total, missing in zip(totals[p].tolist(), absent, strict=True)
            ),
        )
        for p, name in enumerate(PHASES)
    )
    return Phases(LEAVES, rows, "own" if has_own_marks(trace) else "foreign")


def phase_times(trace: Trace) -> Int64Array:
    """Compute the matrix of every step, in nanoseconds: shape (steps, `PHASES`, `LEAVES`)."""
    begin, _ = phase_timeline(trace)
    steps = trace.steps
    # Cut the steps where the host's phase changes, so that each piece of host time lies in one step and one phase.
    cuts = np.unique(np.concatenate((begin, steps.start_ns, steps.end_ns)))
    step = np.searchsorted(steps.start_ns, cuts, side="right") - 1
    inside = (step >= 0) & (cuts < steps.end_ns[np.maximum(step, 0)])
    cut_end = np.append(cuts[1:], cuts[-1:])[inside]
    cuts, step = cuts[inside], step[inside]
    host_phase = phases_at(trace, cuts)

    columns: list[tuple[int, int | None]] = []
    sets: list[Intervals] = []
    launched_in = launch_phases(trace)
    for name, kind in DEVICE_CATEGORIES.items():
        rows = np.flatnonzero(trace.device.kind == kind)
        for p in np.unique(launched_in[rows]).tolist():
            of_phase = rows[launched_in[rows] == p]
            columns.append((LEAVES.index(name), p))
            sets.append(merge(trace.device.start_ns[of_phase], trace.device.end_ns[of_phase]))
    for name, active in host_sets(trace).items():
        columns.append((LEAVES.index(name), None))
        sets.append(active)
    columns.append((LEAVES.index("host_other"), None))
    times = np.zeros((len(steps), len(PHASES), len(LEAVES)), dtype=np.int64)
    for (column, launched), lengths in zip(columns, exclusive_ns(sets, cuts, cut_end), strict=True):
        issued_in = host_phase if launched is None else np.full_like(host_phase, launched)
        np.add.at(times[:, :, column], (step, issued_in), lengths)
    return times
