"""Bins against a second implementation that looks at every nanosecond."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lightning_perf.analysis.core.bins import Bins, cut_steps, innermost, pack, rank_parts
from lightning_perf.trace.columns import NO_ROW, Spans
from lightning_perf.trace.indexing import parent_rows
from tests.support.packed_bins import unpack


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
def test_sums_equal_those_of_a_count_of_nanoseconds(seed: int) -> None:
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
    bin_of, code_of, time_ns = bins.sum_codes(spans(rows), 5)
    found = dict(zip(zip(bin_of.tolist(), code_of.tolist(), strict=True), time_ns.tolist(), strict=True))
    assert found == expected


@pytest.mark.parametrize("seed", range(20))
def test_the_innermost_span_has_each_instant(seed: int) -> None:
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
    pieces = innermost(table, parent_rows(table))
    for thread in (1, 2):
        for t in range(100):
            around = [(e - s, name) for s, e, name, own in rows if own == thread and s <= t < e]
            found = [
                name
                for s, e, name, own in zip(
                    pieces.start_ns.tolist(),
                    pieces.end_ns.tolist(),
                    pieces.name.tolist(),
                    pieces.thread.tolist(),
                    strict=True,
                )
                if own == thread and s <= t < e
            ]
            assert len(found) == bool(around)
            if around:
                shortest = min(around)[0]
                assert found[0] in {name for length, name in around if length == shortest}


def test_no_span_has_no_piece() -> None:
    assert len(innermost(spans([]), np.empty(0, dtype=np.int32))) == 0
    assert len(innermost(spans([(5, 5, 0, 0)]), np.array([NO_ROW], dtype=np.int32))) == 0


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
