import pytest

from lightning_perf.analysis.host.launches import HostPace, blocked_ns, bounded_by_host, host_pace
from tests.support.trace_builder import TraceBuilder


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
    pace = HostPace(steps=2, whole_ns=200, operators_ns=60)
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
