from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.analysis.host.launches import queue_depth
from tests.support.trace_builder import TraceBuilder


def every_row(trace):
    return np.ones(len(trace.device), dtype=np.bool_)


def test_queue_of_two_streams():
    trace = (
        TraceBuilder()
        .launch("a", call_us=0, call_duration_us=5, start_us=10, duration_us=50)
        .launch("b", call_us=20, call_duration_us=5, start_us=60, duration_us=10)
        .launch("c", call_us=30, call_duration_us=5, start_us=40, duration_us=10, stream=9)
        .kernel("stranger", 80, 20, stream=9)
        .build()
    )
    queue = queue_depth(trace, every_row(trace), 100_000)
    assert queue is not None
    assert (queue.max, queue.mean, queue.empty_share) == (2, pytest.approx(0.6), pytest.approx(0.5))
    assert [(s.stream, s.items, s.max, s.mean) for s in queue.streams] == [
        (7, 2, 1, pytest.approx(0.5)),
        (9, 1, 1, pytest.approx(0.1)),
    ]
    assert queue.series.time_ns == (0, 10_000, 20_000, 30_000, 40_000, 60_000)
    assert queue.series.value == (1, 0, 1, 2, 1, 0)


def test_work_that_seems_to_start_before_its_launch_never_waits():
    trace = TraceBuilder().launch("a", call_us=20, call_duration_us=5, start_us=10, duration_us=50).build()
    queue = queue_depth(trace, every_row(trace), 60_000)
    assert queue is not None
    assert (queue.max, queue.mean, queue.empty_share) == (1, 0, 1)
    assert min(queue.series.value) == 0


def test_without_launches_there_is_no_queue():
    trace = TraceBuilder().kernel("k", 0, 5).build()
    assert queue_depth(trace, every_row(trace), 5_000) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(-5, 30), st.integers(1, 3)), min_size=1, max_size=12))
def test_depth_against_an_instant_by_instant_count(launched):
    builder = TraceBuilder()
    for call, delay, stream in launched:
        start = max(call + delay, 0)
        builder.launch("k", call_us=call, call_duration_us=1, start_us=start, duration_us=1, stream=stream)
    trace = builder.build()
    queue = queue_depth(trace, every_row(trace), 100_000)
    assert queue is not None
    waiting = [0] * 100
    for call, delay, _ in launched:
        for instant in range(call, call + delay):
            waiting[instant] += 1
    assert queue.mean == pytest.approx(sum(waiting) / 100)
    assert queue.empty_share == pytest.approx(waiting.count(0) / 100)
    assert queue.max >= max(waiting)
    assert min(queue.series.value) >= 0
    assert max(queue.series.value) == queue.max
    assert sum(stream.mean for stream in queue.streams) == pytest.approx(queue.mean)
