from __future__ import annotations

from lightning_perf.analysis.sync_points import sync_points
from tests.support.trace_builder import TraceBuilder


def test_wait_drain_and_gain() -> None:
    trace = (
        TraceBuilder()
        .step(1, 0, 1000)
        .launch("a", call_us=0, call_duration_us=5, start_us=10, duration_us=290)
        .op("aten::to", 100, 210)
        .op("aten::_to_copy", 110, 195)
        .runtime("cudaStreamSynchronize", 200, 100)  # until the kernel ends
        .launch("b", call_us=440, call_duration_us=5, start_us=450, duration_us=50)
        .runtime("cudaDeviceSynchronize", 480, 30)  # no operator; nothing is launched after it
        .build()
    )
    found = sync_points(trace)
    assert found is not None
    assert (found.calls, found.wait_ns) == (2, 130_000)
    first, second = sorted(found.points, key=lambda point: (point.calls and point.operator) or "", reverse=True)
    assert (first.operator, first.wait_ns, first.drained_ns, first.regained_ns) == (
        "aten::to",
        100_000,
        150_000,
        100_000,
    )
    # From its end to the end of the step.
    assert (second.operator, second.wait_ns, second.drained_ns, second.regained_ns) == (None, 30_000, 490_000, 30_000)


def test_a_copy_to_pageable_memory_and_the_wait_after_it_are_one() -> None:
    trace = (
        TraceBuilder()
        .step(1, 0, 1000)
        .launch("a", call_us=0, call_duration_us=5, start_us=10, duration_us=190)
        .op("aten::item", 90, 130)
        .runtime("cudaMemcpyAsync", 100, 110, 7)
        .device("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 200, 5, correlation=7)
        .runtime("cudaStreamSynchronize", 211, 2)
        .launch("b", call_us=240, call_duration_us=5, start_us=250, duration_us=50)
        .build()
    )
    found = sync_points(trace)
    assert found is not None
    (point,) = found.points
    assert (point.operator, point.call, point.calls) == ("aten::item", "cudaMemcpyAsync", 1)
    # From the end of the second call to the next kernel.
    assert (point.wait_ns, point.drained_ns, point.regained_ns) == (112_000, 37_000, 37_000)


def test_waits_with_a_launch_between_them_are_two() -> None:
    builder = TraceBuilder().step(1, 0, 1000).op("aten::nonzero", 0, 500)
    builder.launch("a", call_us=10, call_duration_us=5, start_us=20, duration_us=80)
    builder.runtime("cudaStreamSynchronize", 30, 70)
    builder.launch("b", call_us=150, call_duration_us=5, start_us=160, duration_us=40)
    builder.runtime("cudaStreamSynchronize", 170, 30)
    found = sync_points(builder.build())
    assert found is not None
    assert (found.calls, found.wait_ns) == (2, 100_000)


def test_the_wait_for_input_is_not_its_fault() -> None:
    trace = (
        TraceBuilder()
        .step(1, 0, 1000)
        .launch("a", call_us=0, call_duration_us=5, start_us=10, duration_us=190)
        .runtime("cudaStreamSynchronize", 100, 100)
        .annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 220, 500)
        .launch("b", call_us=750, call_duration_us=5, start_us=760, duration_us=240)
        .build()
    )
    found = sync_points(trace)
    assert found is not None
    assert found.drained_ns == 60_000


def test_no_device_no_answer() -> None:
    assert sync_points(TraceBuilder().op("aten::mm", 0, 10).build()) is None
