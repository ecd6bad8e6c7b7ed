from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.trace import indexing as module
from lightning_perf.trace.columns import Spans
from lightning_perf.trace.indexing import (
    distinct,
    distinct_rows,
    innermost_marked,
    parent_rows,
    time_order,
    used_codes,
)

INTEGERS = st.lists(st.integers(-(2**62), 2**62) | st.integers(-3, 9), max_size=30)


@pytest.fixture(autouse=True, params=[2, module.BLOCK_ROWS])
def rows_at_once(request: pytest.FixtureRequest) -> Iterator[None]:
    with mock.patch.object(module, "BLOCK_ROWS", request.param):
        yield


@given(INTEGERS)
def test_as_numpy_finds_them(values: list[int]) -> None:
    column = np.array(values, dtype=np.int64)
    found, place = distinct(column)
    expected, expected_place = np.unique(column, return_inverse=True)
    assert found.tolist() == expected.tolist()
    assert place.tolist() == expected_place.tolist()


def test_the_table_is_no_larger_than_it_needs_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TABLE_ROWS", 0)
    for dtype in (np.int8, np.uint8, np.int16, np.int64):
        column: Any = np.array([100, 3, 100, 127, 3], dtype=dtype)
        found, place = distinct(column)
        assert (found.tolist(), place.tolist()) == ([3, 100, 127], [1, 0, 1, 2, 0])


@given(st.lists(st.tuples(st.integers(-2, 3), st.integers(0, 4), st.integers(-1, 1)), max_size=40))
def test_rows_as_numpy_finds_them(rows: list[tuple[int, int, int]]) -> None:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    first, place = distinct_rows(*table.T)
    expected, expected_first, expected_place = np.unique(table, axis=0, return_index=True, return_inverse=True)
    assert table[first].tolist() == expected.tolist()
    assert first.tolist() == expected_first.tolist()
    assert place.tolist() == expected_place.ravel().tolist()


@given(st.lists(st.integers(0, 50)))
def test_used_codes(codes: list[int]) -> None:
    assert used_codes(np.array(codes, dtype=np.int32)) == sorted(set(codes))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20))
def test_rows_by_start_and_then_the_longer_first(times: list[tuple[int, int]]) -> None:
    start, end = np.array(times, dtype=np.int64).reshape(-1, 2).T
    order = time_order(start, end)
    expected = sorted(range(len(times)), key=lambda row: (times[row][0], -times[row][1]))
    assert (list(range(len(times))) if order is None else order.tolist()) == expected


SPANS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 2), st.booleans()), max_size=20)


@given(SPANS)
def test_the_innermost_interval_around_each(drawn: list[tuple[int, int, int, bool]]) -> None:
    rows = sorted((start, -(start + length), thread, marked) for start, length, thread, marked in drawn)
    start, end, thread = (np.array([row[at] for row in rows], dtype=np.int64) for at in range(3))
    spans = Spans(start, -end, thread.astype(np.int32), thread.astype(np.int32))
    parents = parent_rows(spans)
    above = [
        [at for at in range(row) if thread[at] == thread[row] and spans.end_ns[at] >= spans.end_ns[row]]
        for row in range(len(rows))
    ]
    assert parents.tolist() == [max(around, default=-1) for around in above]
    marked = np.array([row[3] for row in rows], dtype=np.bool_)
    expected = []
    for at in range(len(rows)):
        while at != -1 and not marked[at]:
            at = int(parents[at])
        expected.append(at)
    assert innermost_marked(parents, np.arange(len(rows)), marked).tolist() == expected
    assert innermost_marked(parents, np.full(3, -1), marked).tolist() == [-1] * 3
