import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.analysis.host.launches import (
    ClockSkew,
    HostPace,
    LaunchBound,
    LaunchDelay,
    blocked_ns,
    bounded_by_host,
    clock_skew,
    host_pace,
    launches,
    queue_depth,
)
from lightning_perf.analysis.intervals import averaged_steps
from lightning_perf.analysis.steps.breakdown import breakdown
from tests.support.known import known
from tests.support.trace_builder import FETCH, TraceBuilder


def test_counts_delays_and_exposed_time():
    trace = (
        TraceBuilder()
        .step(1, 0, 200)
        .annotation(FETCH, 0, 10)
        .launch("a", call_us=5, call_duration_us=10, start_us=20, duration_us=30)  # 5 µs of the call are input's
        .launch("b", call_us=25, call_duration_us=10, start_us=50, duration_us=50)  # hidden behind a
        .launch("c", call_us=95, call_duration_us=20, start_us=120, duration_us=4)  # 5 µs hidden behind b
        .kernel("ncclKernel_AllReduce", 130, 15)
        .build()
    )
    value = known(launches(trace))
    assert (value.steps, value.calls, value.call_ns, value.exposed_ns) == (1, 3, 40_000, 20_000)
    assert (value.delay.p50_ns, value.delay.p90_ns) == (25_000, 25_000)
    assert (value.kernels, value.unlinked_kernels) == (4, 1)
    assert (value.short_kernels, value.short_kernel_ns, value.outrun_kernels) == (1, 4_000, 1)
    assert value.graphs is None
    assert value.queue.max == 1


def test_graph_launches():
    builder = TraceBuilder().step(1, 0, 100)
    for graph in (1, 2):
        builder.runtime("cudaGraphLaunch", 20 * graph, 8, graph)
        for kernel in range(3):
            builder.kernel(f"k{kernel}", 20 * graph + 10 + 2 * kernel, 2, graph)
    value = known(launches(builder.build()))
    assert (value.graphs.calls, value.graphs.kernels, value.graphs.kernels_per_graph) == (2, 6, 3)
    assert value.graphs.call_ns == 16_000
    # The second and third kernel of a graph wait for the one before them, not for a launch of their own.
    assert value.delay == LaunchDelay(10_000, 10_000, 10_000)
    assert value.outrun_kernels == 0


def eager_step(*, kernel_us: float) -> TraceBuilder:
    """Fifty operators of 20 µs, 5 µs of Python between them; each launches a kernel that starts when it can."""
    builder, free = TraceBuilder().step(1, 0, 1250), 0.0
    for n in range(50):
        at = 25 * n
        builder.op("aten::relu", at, 20)
        free = max(free, at + 12) + kernel_us
        builder.launch("relu", call_us=at + 5, call_duration_us=6, start_us=free - kernel_us, duration_us=kernel_us)
    return builder


def launch_bound(builder: TraceBuilder) -> LaunchBound:
    value = known(launches(builder.build()))
    assert value.launch_bound is not None
    return value.launch_bound


def test_small_kernels_are_launch_bound():
    bound = launch_bound(eager_step(kernel_us=3))
    assert bound.bound
    # In each period of 25 µs the kernel runs 3, stands in the queue for 1, and 6 are a launch call.
    assert (bound.launch_ns, bound.operator_ns, bound.python_ns) == (300_000, 50 * 10_000, 250_000)
    assert bound.waiting_ns == 1_050_000
    assert bound.share == pytest.approx(1050 / 1250)


def test_large_kernels_are_not():
    bound = launch_bound(eager_step(kernel_us=100))
    assert not bound.bound
    assert bound.waiting_ns == 11_000


def test_long_python_is_not_launching():
    builder = TraceBuilder().step(1, 0, 1000).op("aten::relu", 880, 12)
    builder.launch("a", call_us=0, call_duration_us=10, start_us=10, duration_us=90)
    builder.launch("b", call_us=882, call_duration_us=10, start_us=892, duration_us=108)
    bound = launch_bound(builder)
    assert (bound.waiting_ns, bound.python_ns) == (22_000, 0)


def test_a_stall_is_not_launching():
    builder = TraceBuilder().step(1, 0, 10_000).op("aten::convolution", 1000, 8000)
    builder.launch("a", call_us=0, call_duration_us=10, start_us=10, duration_us=990)
    builder.launch("b", call_us=1000, call_duration_us=7000, start_us=9000, duration_us=1000)
    bound = launch_bound(builder)
    assert (bound.bound, bound.waiting_ns) == (False, 10_000)


@pytest.mark.corpus
def test_real_traces(trace, row):
    value = launches(trace)
    if value is None:
        assert len(trace.device) == 0
        return
    exposed = breakdown(trace).category("kernel_launch").per_step_ns
    assert value.exposed_ns == sum(np.array(exposed)[averaged_steps(trace)])
    assert value.unlinked_kernels <= value.kernels
    assert value.empty_calls == 0
    assert row["events"] >= 5000 or clock_skew(trace) is None
    if value.queue is not None:
        assert min(value.queue.series.value) >= 0
        assert value.queue.max == max(value.queue.series.value)
        assert sum(stream.items for stream in value.queue.streams) <= len(trace.device)


def test_work_before_its_launch_is_counted():
    builder = TraceBuilder().step(1, 0, 100).kernel("unlinked", 0, 1)
    builder.launch("sound", call_us=10, call_duration_us=5, start_us=12, duration_us=3)
    builder.launch("at once", call_us=20, call_duration_us=5, start_us=20, duration_us=3)
    builder.launch("early", call_us=30, call_duration_us=5, start_us=28, duration_us=3)
    builder.launch("earlier", call_us=40, call_duration_us=5, start_us=33, duration_us=3)
    assert clock_skew(builder.build()) == ClockSkew(early=2, linked=4, lead_ns=7_000)


def test_nothing_early_and_no_device():
    sound = TraceBuilder().launch("k", call_us=10, call_duration_us=5, start_us=12, duration_us=3)
    assert clock_skew(sound.build()) is None
    assert clock_skew(TraceBuilder().op("aten::mm", 0, 5).build()) is None


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
    queue = known(queue_depth(trace, every_row(trace), 100_000))
    assert (queue.max, queue.mean, queue.empty_share) == (2, pytest.approx(0.6), pytest.approx(0.5))
    assert [(s.stream, s.items, s.max, s.mean) for s in queue.streams] == [
        (7, 2, 1, pytest.approx(0.5)),
        (9, 1, 1, pytest.approx(0.1)),
    ]
    assert queue.series.time_ns == (0, 10_000, 20_000, 30_000, 40_000, 60_000)
    assert queue.series.value == (1, 0, 1, 2, 1, 0)


def test_work_that_seems_to_start_before_its_launch_never_waits():
    trace = TraceBuilder().launch("a", call_us=20, call_duration_us=5, start_us=10, duration_us=50).build()
    queue = known(queue_depth(trace, every_row(trace), 60_000))
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
    queue = known(queue_depth(trace, every_row(trace), 100_000))
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


def test_without_marks_of_steps_operators_are_all_that_is_known() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 50).op("aten::mm", 80, 20)
    builder.launch("k", call_us=1, call_duration_us=5, start_us=6, duration_us=60)
    assert host_pace(builder.build()) == HostPace(1, 70_000, 70_000)


def test_a_host_that_runs_ahead_needs_less_than_the_step() -> None:
    builder = TraceBuilder()
    for step in range(2):
        builder.step(step, 300 * step, 300).op("aten::mm", 300 * step, 100)
        builder.launch("k", call_us=300 * step + 1, call_duration_us=5, start_us=10 + 900 * step, duration_us=900)
    trace = builder.build()
    assert trace.steps.end_ns.tolist() == [910_000, 1_810_000]
    assert host_pace(trace) == HostPace(2, 600_000, 200_000)


def test_a_host_at_its_limit_leaves_nothing_sure() -> None:
    pace = HostPace(steps=2, whole_ns=200, operators_ns=150)
    assert bounded_by_host(10.0, 90.0, 100.0, pace) == (0.0, 70.0)
    assert bounded_by_host(10.0, 90.0, 110.0, pace) == (5.0, 80.0)
    assert bounded_by_host(10.0, 90.0, 300.0, pace) == (10.0, 90.0)
    assert bounded_by_host(10.0, 90.0, 20.0, pace) == (0.0, 0.0)
    assert bounded_by_host(-5.0, 90.0, 300.0, None) == (-5.0, 90.0)


def by_call(trace):
    return dict(zip(trace.runtime.start_ns.tolist(), blocked_ns(trace).tolist(), strict=True))


def test_a_synchronizing_call_waits_all_the_time() -> None:
    trace = (
        TraceBuilder()
        .step(1, 0, 100)
        .op("aten::item", 0, 90)
        .launch("k", call_us=1, call_duration_us=5, start_us=6, duration_us=60)
        .runtime("cudaStreamSynchronize", 10, 57)
        .build()
    )
    assert by_call(trace) == {1_000: 0, 10_000: 57_000}
    assert host_pace(trace) == HostPace(1, 43_000, 33_000)


def test_waits_outside_of_operators_are_none_of_theirs() -> None:
    builder = TraceBuilder().step(1, 0, 100).op("aten::mm", 0, 10)
    builder.launch("k", call_us=1, call_duration_us=5, start_us=6, duration_us=60)
    assert host_pace(builder.runtime("cudaDeviceSynchronize", 20, 46).build()) == HostPace(1, 54_000, 10_000)


def full_queue(*, device_us: int) -> TraceBuilder:
    """Eight launches of 5 µs, and two that take 105 µs, while the device works for a part of them."""
    builder = TraceBuilder().step(1, 0, 2_000)
    for number in range(8):
        builder.op("aten::mm", 10 * number, 9)
        builder.launch("k", call_us=10 * number + 1, call_duration_us=5, start_us=10 * number + 6, duration_us=1)
    for start in (1_000, 1_500):
        builder.op("aten::mm", start, 120)
        builder.launch("k", call_us=start, call_duration_us=105, start_us=start + 105, duration_us=1)
        builder.kernel("before", start, device_us)
    return builder


@pytest.mark.parametrize(("device_us", "waited_us"), [(105, 100), (40, 40), (0, 0)])
def test_launches_wait_for_room_in_the_queue_as_far_as_the_device_works(device_us: int, waited_us: int) -> None:
    trace = full_queue(device_us=device_us).build()
    waits = [wait for wait in by_call(trace).values() if wait]
    assert waits == [waited_us * 1000] * (2 if waited_us else 0)
    assert host_pace(trace) == HostPace(1, 2_000_000 - 2_000 * waited_us, 312_000 - 2_000 * waited_us)


def test_calls_that_start_no_work_are_work() -> None:
    builder = TraceBuilder().step(1, 0, 1_000).kernel("k", 0, 900).op("aten::empty", 0, 500)
    for start in (0, 10, 20, 30):
        builder.runtime("cudaFuncGetAttributes", start, 5)
    assert set(by_call(builder.runtime("cudaFuncGetAttributes", 100, 300).build()).values()) == {0}


def test_a_copy_from_pageable_memory_waits_for_its_stream() -> None:
    builder = TraceBuilder()
    for number, wait_us in enumerate((0, 0, 0, 0, 700)):
        start = 1_000 * number
        builder.step(number + 1, start, 1_000).op("aten::copy_", start + 5, 900)
        builder.launch("k", call_us=start + 1, call_duration_us=2, start_us=start + 3, duration_us=800)
        builder.runtime("cudaMemcpyAsync", start + 10, 50 + wait_us, number + 1)
        builder.memcpy("HtoD", start + 850, 10, number + 1, pinned=False)
    assert host_pace(builder.build()) == HostPace(5, 4_300_000, 3_800_000)
