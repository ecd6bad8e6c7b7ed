"""The timeline: which category, phase, kernel, operator and module has the time in each short span of every step."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.core.arrays import sum_by
from lightning_perf.analysis.core.intervals import exclusive_ns, merge
from lightning_perf.analysis.model.modules import module_calls
from lightning_perf.analysis.steps.breakdown import category_times
from lightning_perf.analysis.steps.categories import CATEGORIES, host_sets
from lightning_perf.analysis.steps.idle import GAP_CLASSES, device_busy, queued_work
from lightning_perf.analysis.steps.phase_timeline import PHASES, host_phases
from lightning_perf.trace.columns import NO_ROW, Int32Array, Int64Array, Spans
from lightning_perf.trace.indexing import parent_rows
from lightning_perf.trace.trace import Trace

WHOLE = 255
"""The share of a part that fills its bin."""

MOST_CODES = 255
"""A packed part names its code in one byte."""

_LONGEST_RUN = 255

ROWS_AT_ONCE = 1 << 18
"""Spans that are summed at once, or those of one code if they are more. It bounds the memory for large recordings."""


class Bins(Struct, frozen=True, eq=False):
    """Spans of time in ascending order that do not overlap. Bins of one step touch.

    Attributes:
        end_ns: Its end. A bin of a step that is shorter than its number of bins may be empty.
    """

    start_ns: Int64Array
    end_ns: Int64Array

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def length_ns(self) -> Int64Array:
        """Length of each bin."""
        return self.end_ns - self.start_ns

    def sum_codes(self, spans: Spans, codes: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return bin, code and time of each pair that has any. Spans of one code that overlap count once."""
        filled = spans.end_ns > spans.start_ns
        if not filled.any() or not len(self):
            return (np.empty(0, dtype=np.int64),) * 3
        group = np.cumsum(np.bincount(spans.name[filled], minlength=codes)) // ROWS_AT_ONCE
        parts = [self._sum_group(spans.at(filled & (group[spans.name] == each)), codes) for each in np.unique(group)]
        pairs, time_ns = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.argsort(pairs)
        return pairs[order] // codes, pairs[order] % codes, time_ns[order]

    def _sum_group(self, spans: Spans, codes: int) -> tuple[Int64Array, Int64Array]:
        """Return pairs of bin and code as numbers, ascending, and the time of each that has any."""
        if not len(spans):
            return (np.empty(0, dtype=np.int64),) * 2
        start, end, code = spans.start_ns, spans.end_ns, spans.name.astype(np.int64)
        # A copy of the axis for each code, so that one merge serves all of them.
        origin = int(min(start.min(), self.start_ns[0]))
        width = int(max(end.max(), self.end_ns[-1])) - origin + 1
        shift = code * width - origin
        active = merge(start + shift, end + shift)
        code = active.start_ns // width
        start = active.start_ns - code * width + origin
        end = active.end_ns - code * width + origin
        first = np.searchsorted(self.end_ns, start, side="right")
        last = np.searchsorted(self.start_ns, end, side="left")
        count = np.maximum(last - first, 0)
        row = np.repeat(np.arange(len(start)), count)
        at = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + first[row]
        length = np.minimum(end[row], self.end_ns[at]) - np.maximum(start[row], self.start_ns[at])
        pairs, group = np.unique(at * codes + code[row], return_inverse=True)
        time_ns = sum_by(group, length, len(pairs))
        some = time_ns > 0
        return pairs[some], time_ns[some]


def cut_steps(start_ns: Int64Array, end_ns: Int64Array, bins: int) -> Bins:
    """Cut each step into bins of equal length, to the nanosecond."""
    number = np.arange(bins + 1, dtype=np.int64)
    edges = start_ns[:, None] + (end_ns - start_ns)[:, None] * number // bins
    return Bins(edges[:, :-1].ravel(), edges[:, 1:].ravel())


def innermost(spans: Spans, parents: Int32Array) -> Spans:
    """Divide the time of nested spans so that each instant of a thread belongs to the innermost span."""
    rows = np.flatnonzero(spans.end_ns > spans.start_ns)
    # At one instant, inner spans end first, and outer ones start first.
    row = np.concatenate((rows, rows))
    starts = np.arange(len(row)) >= len(rows)
    time = np.concatenate((spans.end_ns[rows], spans.start_ns[rows]))
    order = np.lexsort((np.where(starts, row, -row), starts, time, spans.thread[row]))
    row, time, starts = row[order], time[order], starts[order]
    thread = spans.thread[row]
    active = np.where(starts, row, parents[row])
    kept = np.flatnonzero((thread[:-1] == thread[1:]) & (time[:-1] < time[1:]) & (active[:-1] != NO_ROW))
    return Spans(time[kept], time[kept + 1], spans.name[active[kept]], thread[kept])


def rank_parts(at: Int64Array, code: Int64Array, time_ns: Int64Array, bins: int, most: int) -> tuple[Int64Array, ...]:
    """Return the largest parts of each bin, as matrices of codes and times with a row per bin. Ties ascend by code."""
    order = np.lexsort((code, -time_ns, at))
    at, code, time_ns = at[order], code[order], time_ns[order]
    first = np.searchsorted(at, np.arange(bins))
    place = np.arange(len(at)) - first[at]
    kept = place < most
    codes, times = np.zeros((bins, most), dtype=np.int64), np.zeros((bins, most), dtype=np.int64)
    codes[at[kept], place[kept]] = code[kept]
    times[at[kept], place[kept]] = time_ns[kept]
    return codes, times


def pack(bins: Bins, codes: Int64Array, times_ns: Int64Array, *, exclusive: bool) -> str:
    """Write the parts of each bin, the largest first, as text: runs of equal bins, as base64.

    A run is a byte with its number of bins, a byte with its number of parts, and two bytes for each part. They hold its
    code and its share of the bin in 255ths. Exclusive parts never overlap: if they fill their bin, their shares sum to
    255. Parts below half of a 255th may be missing.
    """
    length = np.maximum(bins.length_ns, 1)[:, None]
    if exclusive:
        upto = (2 * WHOLE * np.cumsum(times_ns, axis=1) + length) // (2 * length)
        share = np.diff(upto, axis=1, prepend=0)
    else:
        share = (2 * WHOLE * times_ns + length) // (2 * length)
    code = np.where(share > 0, codes, 0)
    if not len(share):
        return ""
    same = np.append(False, (share[1:] == share[:-1]).all(axis=1) & (code[1:] == code[:-1]).all(axis=1))
    run = np.cumsum(~same) - 1
    place = np.arange(len(same)) - np.flatnonzero(~same)[run]
    first = np.flatnonzero(place % _LONGEST_RUN == 0)
    share, code = share[first], code[first]
    parts = (share > 0).sum(axis=1)
    begin = np.cumsum(2 + 2 * parts) - (2 + 2 * parts)
    data = np.zeros(int((2 + 2 * parts).sum()), dtype=np.uint8)
    data[begin] = np.diff(np.append(first, len(same)))
    data[begin + 1] = parts
    row, column = np.nonzero(share)
    at = begin[row] + 2 + 2 * (np.cumsum(share > 0, axis=1)[row, column] - 1)
    data[at], data[at + 1] = code[row, column], share[row, column]
    return base64.b64encode(data.tobytes()).decode()


BINS = 400
"""Bins of a step, unless the recording has very many steps."""

MOST_BINS = 24_000
"""Bins of one rank."""

MOST_BINS_OF_ALL_RANKS = 96_000
"""Bins of a run. They bound the size of its report."""

NAMES_LISTED = 3
"""Kernels, operators or modules listed per bin."""

TOP_CATEGORIES = tuple(name for name, parent in CATEGORIES if parent is None)


class Lane(Struct, frozen=True):
    """One row of the timeline: the parts of each bin of every step.

    Attributes:
        names: The names that parts refer to by their place.
        data: The parts of all bins, step after step, as base64. The bytes are runs of equal bins: the number of bins,
            the number of parts, and for each part its name's place and its share of the bin in 255ths. The largest part
            comes first.
    """

    names: tuple[str, ...]
    data: str


class Timeline(Struct, frozen=True):
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
