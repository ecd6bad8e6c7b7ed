"""The interval core against a brute-force second implementation on a grid of single nanoseconds."""

import gc
import weakref
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy.stats import median_abs_deviation

from lightning_perf.analysis import intervals
from lightning_perf.analysis.intervals import (
    EMPTY,
    Intervals,
    Series,
    averaged_steps,
    cached_per_trace,
    exclusive_ns,
    in_averaged_steps,
    intersect,
    merge,
    outlying,
    subtract,
    thin,
    union,
)
from lightning_perf.trace.trace import Trace
from tests.support.trace_builder import TraceBuilder

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


def test_short_series_stays_whole():
    assert thin(np.array([10, 20, 25]), np.array([1, 0, 7]), 10) == Series((0, 10, 15), (1, 0, 7))


def test_empty_series():
    nothing = np.zeros(0, dtype=np.int64)
    assert thin(nothing, nothing, 0) == Series((), ())


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(-50, 50)), min_size=1, max_size=200), st.integers(1, 6))
def test_thinned_series_keeps_each_buckets_extremes(changes, buckets):
    times = np.sort(np.array([time for time, _ in changes], dtype=np.int64))
    values = np.array([value for _, value in changes], dtype=np.int64)
    series = thin(times, values, 0, buckets)
    assert len(series.value) <= max(4 * buckets, 0) or len(series.value) == len(changes) <= 4 * buckets
    assert set(zip(series.time_ns, series.value, strict=True)) <= set(zip(times.tolist(), values.tolist(), strict=True))
    assert (series.time_ns[0], series.value[0]) == (times[0], values[0])
    assert (series.time_ns[-1], series.value[-1]) == (times[-1], values[-1])
    span = int(times[-1] - times[0]) + 1
    for bucket in range(buckets):
        begin, end = times[0] + bucket * span // buckets, times[0] + (bucket + 1) * span // buckets
        inside = values[(times >= begin) & (times < end)]
        kept = [v for t, v in zip(series.time_ns, series.value, strict=True) if begin <= t < end]
        if len(inside):
            assert (min(kept), max(kept)) == (inside.min(), inside.max())


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=40))
def test_as_scipy_scores_them(values):
    apart = np.abs(np.array(values) - np.median(values))
    score = 0.6745 * apart - 3.5 * median_abs_deviation(values)
    expected = (score > 0) & (apart > 0.1 * np.median(values))
    assert outlying(np.array(values)).tolist() == expected.tolist()


def steps(*complete):
    builder = TraceBuilder()
    for n in range(len(complete)):
        builder.step(n, n * 100, 80)
    trace = builder.build()
    trace.__dict__["steps"] = replace(trace.steps, complete=np.array(complete))
    return trace


def test_incomplete_steps_are_left_out():
    trace = steps(True, True, False)
    assert averaged_steps(trace).tolist() == [True, True, False]
    times = np.array([-1, 0, 79_999, 80_000, 100_000, 250_000])
    assert in_averaged_steps(trace, times).tolist() == [False, True, True, False, True, False]


def test_without_a_complete_step_all_count():
    assert averaged_steps(steps(False, False)).tolist() == [True, True]


def test_once_for_each_recording_and_not_for_longer_than_that() -> None:
    calls: list[int] = []

    @cached_per_trace
    def operators(trace: Trace) -> list[int]:
        calls.append(len(trace.operators))
        return calls[-1:]

    one, two = (TraceBuilder().op("aten::mm", 0, 1).build() for _ in range(2))
    assert operators(one) is operators(one)
    assert operators(two) is not operators(one)
    assert calls == [1, 1]
    watched = weakref.ref(one)
    del one
    gc.collect()
    assert watched() is None
