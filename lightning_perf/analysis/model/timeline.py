"""The timeline: which category, phase, kernel, operator and module has the time in each short span of every step."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.analysis.intervals import exclusive_ns, merge, sum_by
from lightning_perf.analysis.model.modules import module_calls
from lightning_perf.analysis.steps.breakdown import CATEGORIES, PHASES, category_times, host_phases, host_sets
from lightning_perf.analysis.steps.idle import GAP_CLASSES, device_busy, queued_work
from lightning_perf.trace.columns import NO_ROW, Int32Array, Int64Array, Spans
from lightning_perf.trace.indexing import parent_rows, self_ns
from lightning_perf.trace.trace import Trace

WHOLE = 255
"""The share of a part that fills its bin."""

MOST_CODES = 255
"""A packed part names its code in one byte."""

_LONGEST_RUN = 255

ROWS_AT_ONCE = 1 << 18
"""Spans that are summed at once, or those of one bin if they are more. It bounds the memory for large recordings."""


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

    def sum_codes(
        self, spans: Spans, codes: NDArray[np.integer[Any]], parents: Int32Array | None = None
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return bin, code and time of each pair that has any. Spans of one code that overlap count once.

        Args:
            spans: A table, in its order.
            codes: The code of each name. A negative one leaves it out.
            parents: The parent of each span, if only the innermost span of each thread counts at an instant.
        """
        parts = [(np.empty(0, dtype=np.int64),) * 2]
        number = int(codes.max(initial=0)) + 1
        block = np.searchsorted(spans.start_ns, self.start_ns) // ROWS_AT_ONCE
        edges = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(self)] if len(self) else []
        for first, last in pairwise(edges):
            bins = Bins(self.start_ns[first:last], self.end_ns[first:last])
            begin, end = bins.start_ns[0], bins.end_ns[-1]
            until = int(np.searchsorted(spans.start_ns, end))
            rows = np.flatnonzero(spans.end_ns[:until] > begin)
            within = spans.at(rows) if parents is None else innermost(spans, parents, rows)
            code = codes[within.name].astype(np.int64)
            listed = code >= 0
            start = np.maximum(within.start_ns[listed], begin)
            pairs, time_ns = bins._sum(start, np.minimum(within.end_ns[listed], end), code[listed], number)
            parts.append((pairs + first * number, time_ns))
        pairs, time_ns = map(np.concatenate, zip(*parts, strict=True))
        return pairs // number, pairs % number, time_ns

    def _sum(self, start: Int64Array, end: Int64Array, code: Int64Array, codes: int) -> tuple[Int64Array, Int64Array]:
        """Return pairs of bin and code as numbers, ascending, and the time of each that has any."""
        # A copy of the axis for each code, so that one merge serves all of them.
        origin = int(self.start_ns[0])
        width = int(self.end_ns[-1]) - origin + 1
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


def innermost(spans: Spans, parents: Int32Array, rows: Int64Array) -> Spans:
    """Divide the time of some nested spans so that each instant of a thread belongs to the innermost one."""
    rows = rows[spans.end_ns[rows] > spans.start_ns[rows]]
    # At one instant, inner spans end first, and outer ones start first. A stable sort by time keeps this order.
    row = np.concatenate((rows[::-1], rows))
    time = np.concatenate((spans.end_ns[rows[::-1]], spans.start_ns[rows]))
    order = np.lexsort((time, spans.thread[row]))
    row, time = row[order], time[order]
    active = np.where(order >= len(rows), row, parents[row])[:-1]
    kept = np.flatnonzero((time[:-1] < time[1:]) & (active != NO_ROW))  # a thread ends with no row active
    return Spans(time[kept], time[kept + 1], spans.name[active[kept]], spans.thread[active[kept]])


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
    device, (calls, prefix, _) = trace.device, module_calls(trace)
    phases = host_phases(trace)
    of_phases = exclusive_ns((phases[name] for name in PHASES if name != "other"), bins.start_ns, bins.end_ns)
    active = (device_busy(trace), queued_work(trace), *host_sets(trace).values())
    of_causes = exclusive_ns(active, bins.start_ns, bins.end_ns)[1:] if len(trace.device) else []
    return Timeline(
        bins=number,
        categories=_exclusive_lane(bins, TOP_CATEGORIES, [categories[name] for name in TOP_CATEGORIES]),
        phases=_exclusive_lane(bins, PHASES, of_phases),
        idle=_exclusive_lane(bins, GAP_CLASSES, of_causes) if len(trace.device) else None,
        kernels=_named_lane(trace, bins, Spans(device.start_ns, device.end_ns, device.name, device.name)),
        operators=_named_lane(trace, bins, trace.operators, trace.links.operator_parent),
        modules=_module_lane(trace, bins, calls, prefix),
    )


def _exclusive_lane(bins: Bins, names: Sequence[str], times: Sequence[Int64Array]) -> Lane:
    """Pack parts that never overlap, with only the names that occur."""
    used = [place for place, time_ns in enumerate(times) if time_ns.any()]
    matrix = np.stack([times[place] for place in used]) if used else np.zeros((1, len(bins)), dtype=np.int64)
    code, at = np.nonzero(matrix)
    codes, sizes = rank_parts(at, code, matrix[code, at], len(bins), len(matrix))
    return Lane(tuple(names[place] for place in used), pack(bins, codes, sizes, exclusive=True))


def _named_lane(trace: Trace, bins: Bins, spans: Spans, parents: Int32Array | None = None) -> Lane | None:
    """Pack the names with the most time in each bin. With parents, only the innermost span of a thread counts."""
    if not len(spans):
        return None
    time_ns = spans.duration_ns if parents is None else self_ns(spans, parents)
    total = np.bincount(spans.name, weights=time_ns, minlength=len(trace.names))
    kept = np.flatnonzero(total > 0)
    kept = np.sort(kept[np.argsort(-total[kept], kind="stable")[:MOST_CODES]])
    codes = np.full(len(trace.names), -1, dtype=np.int64)
    names = sorted(kept.tolist(), key=lambda place: trace.names[place])
    codes[names] = np.arange(len(names))
    parts = rank_parts(*bins.sum_codes(spans, codes, parents), len(bins), NAMES_LISTED)
    return Lane(tuple(trace.names[place] for place in names), pack(bins, *parts, exclusive=False))


def _module_lane(trace: Trace, bins: Bins, calls: Spans, prefix: str) -> Lane | None:
    lane = _named_lane(trace, bins, calls, parent_rows(calls))
    return lane and Lane(tuple(name.removeprefix(prefix) for name in lane.names), lane.data)
