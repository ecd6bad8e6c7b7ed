"""The interval core against a brute-force second implementation on a grid of single nanoseconds."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.analysis.core import intervals
from lightning_perf.analysis.core.intervals import EMPTY, Intervals, exclusive_ns, intersect, merge, subtract, union

SPAN = 40
pairs = st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)), max_size=12)
windows = st.lists(st.tuples(st.integers(-5, SPAN + 5), st.integers(0, SPAN)), max_size=6)


def build(items):
    return merge(np.array([a for a, _ in items], np.int64), np.array([b for _, b in items], np.int64))


def grid(items):
    """The set of nanoseconds covered, by counting."""
    return {t for a, b in items for t in range(a, b)}


def instants(found: Intervals):
    return grid(zip(found.start_ns.tolist(), found.end_ns.tolist(), strict=True))


def assert_canonical(found: Intervals):
    assert (found.end_ns > found.start_ns).all()
    assert (found.start_ns[1:] > found.end_ns[:-1]).all(), "neighbours must neither overlap nor touch"


@given(pairs)
def test_merge_covers_what_the_grid_covers(items):
    found = build(items)
    assert_canonical(found)
    assert instants(found) == grid(items)
    assert found.length_ns == len(grid(items))


@given(pairs, pairs)
def test_set_operations_match_the_grid(a, b):
    sets = build(a), build(b)
    for operation, expected in (
        (union, grid(a) | grid(b)),
        (intersect, grid(a) & grid(b)),
        (subtract, grid(a) - grid(b)),
    ):
        found = operation(*sets)
        assert_canonical(found)
        assert instants(found) == expected


@given(pairs, windows)
def test_covered_counts_the_grid_inside_windows(items, spans):
    starts = np.array([a for a, _ in spans], np.int64)
    ends = starts + np.array([n for _, n in spans], np.int64)
    expected = [len(grid(items) & set(range(a, b))) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    assert build(items).covered(starts, ends).tolist() == expected


@given(pairs)
def test_contains_agrees_with_the_grid(items):
    times = np.arange(-3, SPAN + 3)
    assert build(items).contains(times).tolist() == [int(t) in grid(items) for t in times]


@given(pairs, st.integers(-(2**60), 2**60))
def test_shifting_time_shifts_the_set(items, by):
    here, there = build(items), build([(a + by, b + by) for a, b in items])
    assert (here.start_ns + by).tolist() == there.start_ns.tolist()
    assert (here.end_ns + by).tolist() == there.end_ns.tolist()


@pytest.mark.parametrize("operation", [union, intersect, subtract])
def test_empty_sets(operation):
    one = build([(1, 4)])
    assert len(operation(EMPTY, EMPTY)) == 0
    assert instants(operation(one, EMPTY)) == (set() if operation is intersect else {1, 2, 3})
    assert instants(operation(EMPTY, one)) == ({1, 2, 3} if operation is union else set())
    assert EMPTY.covered(np.array([0]), np.array([9])).tolist() == [0]


@pytest.mark.parametrize("block_rows", [1, 2, 1 << 18])
@given(sets=st.lists(pairs, max_size=4), edges=st.lists(st.integers(-5, 2 * SPAN), max_size=12).map(sorted))
def test_what_each_set_adds_matches_the_grid(block_rows, sets, edges):
    start, end = np.array(edges[0::2][: len(edges) // 2], np.int64), np.array(edges[1::2], np.int64)
    with mock.patch.object(intervals, "BLOCK_ROWS", block_rows):
        found = [lengths.tolist() for lengths in exclusive_ns([build(items) for items in sets], start, end)]
    left = [set(range(a, b)) for a, b in zip(start.tolist(), end.tolist(), strict=True)]
    for items, lengths in zip(sets, found[:-1], strict=True):
        assert lengths == [len(window & grid(items)) for window in left]
        left = [window - grid(items) for window in left]
    assert found[-1] == [len(window) for window in left]
