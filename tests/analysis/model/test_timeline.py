"""The timeline of hand-made recordings, exact sums on real ones, and bins against a second implementation."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lightning_perf.analysis.model import timeline as timeline_module
from lightning_perf.analysis.model.timeline import (
    TOP_CATEGORIES,
    Bins,
    Lane,
    cut_steps,
    innermost,
    pack,
    rank_parts,
    timeline,
)
from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.analysis.steps.breakdown import breakdown, category_times
from lightning_perf.trace.columns import NO_ROW, Spans
from lightning_perf.trace.concatenate import concatenate
from lightning_perf.trace.indexing import parent_rows
from lightning_perf.trace.trace import Trace
from tests.support.known import known
from tests.support.packed_bins import unpack
from tests.support.trace_builder import FETCH, TraceBuilder


def dominant(lane: Lane | None) -> list[str | None]:
    """The name with the most time in each bin."""
    assert lane is not None
    return [lane.names[parts[0][0]] if parts else None for parts in unpack(lane.data)]


def one_step() -> TraceBuilder:
    """A step of 400 µs: a bin per µs."""
    return (
        TraceBuilder()
        .step(1, 0, 400)
        .annotation(FETCH, 0, 100)
        .annotation("perf::fetch", 0, 100)
        .annotation("perf::forward", 100, 100)
        .annotation("perf::backward", 200, 150)
        .python("nn.Module: Net_0", 100, 100)
        .python("nn.Module: Linear_0", 120, 40)
        .op("aten::linear", 110, 60)
        .op("aten::addmm", 120, 30)
        .launch("gemm", call_us=125, call_duration_us=5, start_us=140, duration_us=200)
    )


def test_each_bin_names_the_part_with_the_most_time() -> None:
    found = known(timeline(one_step().build()))
    assert found.bins == 400
    categories = dominant(found.categories)
    assert categories[:100] == ["input"] * 100
    assert categories[100:110] == ["host_other"] * 10
    assert categories[110:125] == ["host_compute"] * 15
    assert categories[125:130] == ["kernel_launch"] * 5
    assert categories[140:340] == ["device_compute"] * 200
    assert categories[340:] == ["host_other"] * 60
    assert dominant(found.phases) == ["fetch"] * 100 + ["forward"] * 100 + ["backward"] * 150 + ["other"] * 50
    assert dominant(found.kernels) == [None] * 140 + ["gemm"] * 200 + [None] * 60
    operators = dominant(found.operators)
    assert operators[109:121] == [None, *["aten::linear"] * 10, "aten::addmm"]
    assert operators[149:151] == ["aten::addmm", "aten::linear"]
    modules = dominant(found.modules)
    assert (modules[99], modules[100], modules[120], modules[160]) == (None, "Net_0", "Linear_0", "Net_0")
    idle = dominant(found.idle)
    assert idle[:100] == ["input"] * 100
    assert idle[130:140] == ["kernel_gap"] * 10
    assert idle[140:340] == [None] * 200


def test_many_steps_and_ranks_have_fewer_bins() -> None:
    builder = TraceBuilder().rank(0, 480)
    for n in range(100):
        builder.step(n, 100 * n, 100)
    found = known(timeline(builder.build()))
    assert found.bins == 2
    assert len(unpack(found.categories.data)) == 200


def test_a_recording_without_a_device_has_no_lane_of_the_device() -> None:
    found = known(timeline(TraceBuilder().step(1, 0, 10).op("aten::mm", 2, 3).build()))
    assert (found.idle, found.kernels, found.modules) == (None, None, None)


def test_more_names_than_a_byte_can_number_keep_the_longest() -> None:
    builder = TraceBuilder().step(1, 0, 4000)
    for n in range(400):
        builder.kernel(f"k{n}", 10 * n, 1 + n / 100, n + 1)
    found = known(timeline(builder.build()))
    assert found.kernels is not None
    assert set(found.kernels.names) == {f"k{n}" for n in range(145, 400)}


def test_clocks_of_joined_files_keep_the_times_of_each_file() -> None:
    def window(start_us: int, base_ns: int) -> Any:
        return TraceBuilder(baseTimeNanoseconds=base_ns).step(1, start_us, 10).build()

    joined = concatenate([window(7, 5_000_000), window(3, 0)])
    clocks = analyze_rank(joined).clocks
    assert [(clock.start_ns, clock.file_ns, clock.clock_ns) for clock in clocks] == [
        (0, 3_000, 3_000),
        (5_004_000, 7_000, 5_007_000),
    ]


@pytest.mark.corpus
def test_bins_sum_to_the_breakdown_to_the_nanosecond(trace: Trace) -> None:
    steps = trace.steps
    bins = cut_steps(steps.start_ns, steps.end_ns, 400)
    spans = category_times(trace, bins.start_ns, bins.end_ns)
    times = [spans[name] for name in TOP_CATEGORIES]
    assert (np.sum(times, axis=0) == bins.length_ns).all()
    found = breakdown(trace)
    for name, per_bin in zip(TOP_CATEGORIES, times, strict=True):
        per_step = found.category(name).per_step_ns
        assert tuple(per_bin.reshape(-1, 400).sum(axis=1).tolist()) == (per_step or (0,) * len(found.steps))
    made = known(timeline(trace))
    filled = cut_steps(steps.start_ns, steps.end_ns, made.bins).length_ns > 0
    for lane in (made.categories, made.phases):
        shares = [sum(share for _, share in parts) for parts in unpack(lane.data)]
        assert shares == np.where(filled, 255, 0).tolist()


def spans(rows: list[tuple[int, int, int, int]]) -> Spans:
    """Spans of (start, end, name, thread), in the order of a table."""
    ordered = sorted(rows, key=lambda row: (row[0], -row[1]))
    columns = [[row[i] for row in ordered] for i in range(4)]
    return Spans(
        np.array(columns[0], dtype=np.int64),
        np.array(columns[1], dtype=np.int64),
        np.array(columns[2], dtype=np.int32),
        np.array(columns[3], dtype=np.int32),
    )


@pytest.mark.parametrize("seed", range(20))
def test_bins_cover_each_step_exactly(seed: int) -> None:
    rng = random.Random(seed)
    edges = sorted(rng.sample(range(1000), 6))
    start, end = np.array(edges[::2]), np.array(edges[1::2])
    number = rng.choice([1, 3, 7, 400])
    bins = cut_steps(start, end, number)
    for step in range(3):
        part = slice(step * number, (step + 1) * number)
        assert bins.start_ns[part][0] == start[step]
        assert bins.end_ns[part][-1] == end[step]
        assert (bins.start_ns[part][1:] == bins.end_ns[part][:-1]).all()
        assert np.ptp(bins.length_ns[part]) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_sums_equal_those_of_a_count_of_nanoseconds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "ROWS_AT_ONCE", [1, 9, 20, 1000][seed % 4])
    rng = random.Random(seed)
    rows = []
    for _ in range(40):
        start = rng.randrange(-20, 320)
        rows.append((start, start + rng.choice([0, 1, 5, 90]), rng.randrange(5), 0))
    bins = cut_steps(np.array([0, 120]), np.array([100, 301]), 7)
    expected = {}
    for at, (begin, end) in enumerate(zip(bins.start_ns.tolist(), bins.end_ns.tolist(), strict=True)):
        for code in range(5):
            covered = {t for s, e, name, _ in rows if name == code for t in range(max(s, begin), min(e, end))}
            if covered:
                expected[at, code] = len(covered)
    bin_of, code_of, time_ns = bins.sum_codes(spans(rows), np.arange(5))
    found = dict(zip(zip(bin_of.tolist(), code_of.tolist(), strict=True), time_ns.tolist(), strict=True))
    assert found == expected


@pytest.mark.parametrize("seed", range(20))
def test_the_innermost_span_has_each_instant(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    rows: list[tuple[int, int, int, int]] = []

    def nest(start: int, end: int, thread: int, depth: int) -> None:
        at = start
        while at < end and depth < 5:
            to = min(end, at + rng.randrange(0, 30))
            if rng.random() < 0.7:
                rows.append((at, to, len(rows), thread))
                nest(at, to, thread, depth + 1)
            at = to + rng.randrange(0, 4) if to > at else at + 1

    nest(0, 100, 1, 0)
    nest(5, 90, 2, 0)
    table = spans(rows)
    pieces = innermost(table, parent_rows(table), np.arange(len(table)))
    owners: dict[tuple[int, int], int] = {}
    for start, end, name, thread in zip(*(column.tolist() for column in columns_of(pieces)), strict=True):
        for t in range(start, end):
            assert owners.setdefault((t, thread), name) == name
    for thread in (1, 2):
        for t in range(100):
            around = [(e - s, name) for s, e, name, own in rows if own == thread and s <= t < e]
            shortest = {name for length, name in around if length == min(around)[0]}
            assert owners.get((t, thread), -1) in (shortest or {-1})
    monkeypatch.setattr(timeline_module, "ROWS_AT_ONCE", [1, 9, 20, 1000][seed % 4])
    bins = cut_steps(np.array([0, 60]), np.array([50, 101]), 7)
    expected = Counter(
        (at, name)
        for (t, _), name in owners.items()
        for at in np.flatnonzero((bins.start_ns <= t) & (t < bins.end_ns)).tolist()
    )
    bin_of, code_of, time_ns = bins.sum_codes(table, np.arange(len(rows)), parent_rows(table))
    assert dict(zip(zip(bin_of.tolist(), code_of.tolist(), strict=True), time_ns.tolist(), strict=True)) == expected


def columns_of(table: Spans) -> tuple[NDArray[Any], ...]:
    return table.start_ns, table.end_ns, table.name, table.thread


def test_no_span_has_no_piece() -> None:
    assert len(innermost(spans([]), np.empty(0, dtype=np.int32), np.arange(0))) == 0
    assert len(innermost(spans([(5, 5, 0, 0)]), np.array([NO_ROW], dtype=np.int32), np.arange(1))) == 0


def test_packed_parts_are_read_again() -> None:
    bins = Bins(np.arange(600) * 100, np.arange(600) * 100 + 100)
    codes, times = np.zeros((600, 2), dtype=np.int64), np.zeros((600, 2), dtype=np.int64)
    codes[:, 0], times[:, 0] = 3, 100
    codes[300], times[300] = (1, 2), (60, 40)
    times[301] = 0
    found = unpack(pack(bins, codes, times, exclusive=True))
    assert len(found) == 600
    assert found[300] == [(1, 153), (2, 102)]
    assert found[301] == []
    assert all(found[i] == [(3, 255)] for i in range(600) if i not in (300, 301))


@pytest.mark.parametrize("seed", range(10))
def test_shares_that_fill_a_bin_sum_to_the_whole(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = rng.multinomial(1234, rng.dirichlet(np.ones(9)), size=50)
    bins = Bins(np.arange(50) * 1234, np.arange(1, 51) * 1234)
    code, at = np.nonzero(parts.T)
    codes, times = rank_parts(at, code, parts[at, code], 50, 9)
    for row, found in enumerate(unpack(pack(bins, codes, times, exclusive=True))):
        assert sum(share for _, share in found) == 255
        assert all(abs(share - 255 * parts[row, code] / 1234) <= 1 for code, share in found)
        assert found[0][0] == int(parts[row].argmax())


def test_the_largest_parts_come_first() -> None:
    at, code, time_ns = np.array([0, 0, 0, 2]), np.array([0, 1, 2, 5]), np.array([5, 9, 5, 1])
    codes, times = rank_parts(at, code, time_ns, 3, 2)
    assert codes.tolist() == [[1, 0], [0, 0], [5, 0]]
    assert times.tolist() == [[9, 5], [0, 0], [1, 0]]
