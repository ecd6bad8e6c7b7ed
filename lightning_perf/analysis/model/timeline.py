"""The timeline: which category, phase, kernel, operator and module has the time in each short span of every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_perf.analysis.core.bins import MOST_CODES, Bins, cut_steps, innermost, pack, rank_parts
from lightning_perf.analysis.core.intervals import exclusive_ns
from lightning_perf.analysis.model.modules import module_calls
from lightning_perf.analysis.steps.breakdown import category_times
from lightning_perf.analysis.steps.categories import CATEGORIES, host_sets
from lightning_perf.analysis.steps.idle import GAP_CLASSES, device_busy, queued_work
from lightning_perf.analysis.steps.phase_timeline import PHASES, host_phases
from lightning_perf.trace.columns import Int32Array, Int64Array, Spans
from lightning_perf.trace.indexing import parent_rows
from lightning_perf.trace.trace import Trace

BINS = 400
"""Bins of a step, unless the recording has very many steps."""

MOST_BINS = 24_000
"""Bins of one rank."""

MOST_BINS_OF_ALL_RANKS = 96_000
"""Bins of a run. They bound the size of its report."""

NAMES_LISTED = 3
"""Kernels, operators or modules listed per bin."""

TOP_CATEGORIES = tuple(name for name, parent in CATEGORIES if parent is None)


@dataclass(frozen=True)
class Lane:
    """One row of the timeline: the parts of each bin of every step.

    Attributes:
        names: The names that parts refer to by their place.
        data: The parts of all bins, step after step, as base64. The bytes are runs of equal bins: the number of bins,
            the number of parts, and for each part its name's place and its share of the bin in 255ths. The largest part
            comes first.
    """

    names: tuple[str, ...]
    data: str


@dataclass(frozen=True)
class Timeline:
    """Where the time goes within each step. A lane that the recording cannot support is ``None``.

    Attributes:
        bins: Bins per step. The bins of a step have equal lengths.
        categories: The categories of the step-time breakdown. In each bin the shares sum to 255.
        phases: The phases of the host. In each bin the shares sum to 255.
        idle: Time in which no device worked, by cause; ``None`` without a device.
        kernels: The device work with the most time in each bin.
        operators: The operators that the host ran longest in each bin. Only the innermost operator counts.
        modules: The modules in which the host was longest in each bin. Only the innermost module counts.
    """

    bins: int
    categories: Lane
    phases: Lane
    idle: Lane | None = None
    kernels: Lane | None = None
    operators: Lane | None = None
    modules: Lane | None = None


def timeline(trace: Trace) -> Timeline | None:
    """Cut the steps into bins and find the parts of each bin."""
    steps = trace.steps
    if not len(steps.start_ns):
        return None
    most = min(MOST_BINS, MOST_BINS_OF_ALL_RANKS // max(trace.metadata.world_size or 1, 1))
    number = max(1, min(BINS, most // len(steps.start_ns)))
    bins = cut_steps(steps.start_ns, steps.end_ns, number)
    categories = category_times(trace, bins.start_ns, bins.end_ns)
    calls, prefix, _ = module_calls(trace)
    operators = innermost(trace.operators, trace.links.operator_parent)
    phases = host_phases(trace)
    of_phases = exclusive_ns((phases[name] for name in PHASES if name != "other"), bins.start_ns, bins.end_ns)
    active = (device_busy(trace), queued_work(trace), *host_sets(trace).values())
    of_causes = list(exclusive_ns(active, bins.start_ns, bins.end_ns))[1:] if len(trace.device) else []
    return Timeline(
        bins=number,
        categories=_exclusive_lane(bins, TOP_CATEGORIES, [categories[name] for name in TOP_CATEGORIES]),
        phases=_exclusive_lane(bins, PHASES, list(of_phases)),
        idle=_exclusive_lane(bins, GAP_CLASSES, of_causes) if len(trace.device) else None,
        kernels=_named_lane(trace, bins, trace.device.start_ns, trace.device.end_ns, trace.device.name),
        operators=_named_lane(trace, bins, operators.start_ns, operators.end_ns, operators.name),
        modules=_module_lane(trace, bins, calls, prefix),
    )


def _exclusive_lane(bins: Bins, names: Sequence[str], times: Sequence[Int64Array]) -> Lane:
    """Pack parts that never overlap, with only the names that occur."""
    used = [place for place, time_ns in enumerate(times) if time_ns.any()]
    matrix = np.stack([times[place] for place in used]) if used else np.zeros((1, len(bins)), dtype=np.int64)
    code, at = np.nonzero(matrix)
    codes, sizes = rank_parts(at, code, matrix[code, at], len(bins), len(matrix))
    return Lane(tuple(names[place] for place in used), pack(bins, codes, sizes, exclusive=True))


def _named_lane(trace: Trace, bins: Bins, start: Int64Array, end: Int64Array, name: Int32Array) -> Lane | None:
    """Pack the names with the most time in each bin."""
    if not len(start):
        return None
    total = np.bincount(name, weights=end - start, minlength=len(trace.names))
    kept = np.flatnonzero(total > 0)
    kept = np.sort(kept[np.argsort(-total[kept], kind="stable")[:MOST_CODES]])
    code = np.full(len(trace.names), -1, dtype=np.int64)
    names = sorted(kept.tolist(), key=lambda place: trace.names[place])
    code[names] = np.arange(len(names))
    rows = np.flatnonzero(code[name] >= 0)
    spans = Spans(start[rows], end[rows], code[name[rows]].astype(np.int32), np.zeros(len(rows), dtype=np.int32))
    codes, times = rank_parts(*bins.sum_codes(spans, len(names)), len(bins), NAMES_LISTED)
    return Lane(tuple(trace.names[place] for place in names), pack(bins, codes, times, exclusive=False))


def _module_lane(trace: Trace, bins: Bins, calls: Spans, prefix: str) -> Lane | None:
    if not len(calls):
        return None
    inner = innermost(calls, parent_rows(calls))
    lane = _named_lane(trace, bins, inner.start_ns, inner.end_ns, inner.name)
    return lane and Lane(tuple(name.removeprefix(prefix) for name in lane.names), lane.data)
