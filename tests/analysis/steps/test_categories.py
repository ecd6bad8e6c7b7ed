import pytest

from lightning_perf.analysis.steps.breakdown import (
    CATEGORIES,
    DEVICE_CATEGORIES,
    HOST_CATEGORIES,
    RuntimeKind,
    call_kind,
    host_sets,
    runtime_kinds,
)
from lightning_perf.trace.columns import DeviceKind
from tests.support.trace_builder import TraceBuilder


def test_every_category_without_parts_is_filled_by_one_set_in_order():
    parents = {parent for _, parent in CATEGORIES}
    assert [name for name, _ in CATEGORIES if name not in parents] == [*DEVICE_CATEGORIES, *HOST_CATEGORIES]
    assert (*host_sets(TraceBuilder().step(1, 0, 10).build()), "host_other") == HOST_CATEGORIES
    assert list(DEVICE_CATEGORIES.values()) == list(DeviceKind)


def test_host_sets_are_merged_over_threads():
    trace = TraceBuilder().step(1, 0, 10).op("a", 0, 2).op("b", 1, 3, thread=2000).op("c", 6, 1).build()
    active = host_sets(trace)["host_compute"]
    assert list(zip(active.start_ns.tolist(), active.end_ns.tolist(), strict=True)) == [(0, 4000), (6000, 7000)]


CALLS = {
    "SYNC": (
        "cudaDeviceSynchronize", "cudaStreamSynchronize", "cuCtxSynchronize", "hipEventSynchronize", "cudaMemcpy",
        "hipMemcpyWithStream", "urEventWait", "zeCommandQueueSynchronize",
    ),
    "ALLOC": (
        "cudaMalloc", "cudaMallocAsync", "cudaFree", "cudaHostAlloc", "cuMemAlloc_v2", "cuMemSetAccess",
        "hipHostMalloc", "hipExtMallocWithFlags", "urUSMDeviceAlloc", "zeMemFree",
    ),
    "OTHER": (
        "cudaStreamWaitEvent", "cudaEventQuery", "cudaMemcpyAsync", "cuMemcpyDtoDAsync", "cudaGetDevice",
        "cudaMemcpyPeer", "urEnqueueEventsWait",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CALLS)
def test_calls_by_name(kind):
    assert {name: call_kind(name) for name in CALLS[kind]} == dict.fromkeys(CALLS[kind], RuntimeKind[kind])


def test_what_starts_a_kernel_is_a_launch_whatever_its_name():
    builder = TraceBuilder().step(1, 0, 100)
    builder.launch("k", call="hipNewLaunch", call_us=1, call_duration_us=2, start_us=9, duration_us=5)
    builder.runtime("cudaMemcpyAsync", 20, 2, 7).memcpy("HtoD", 25, 5, 7).runtime("cudaStreamSynchronize", 40, 5)
    kinds = runtime_kinds(builder.build()).tolist()
    assert kinds == [RuntimeKind.LAUNCH, RuntimeKind.OTHER, RuntimeKind.SYNC]


def test_a_copy_to_pageable_memory_waits_whatever_its_call_is_named():
    builder = TraceBuilder().step(1, 0, 100)
    for number, kind in enumerate(("Device -> Pageable", "Device -> Pinned", "Pageable -> Device"), 1):
        builder.runtime("cudaMemcpyAsync", 10 * number, 5, number)
        builder.device("gpu_memcpy", f"Memcpy DtoH ({kind})", 10 * number + 2, 1, correlation=number)
    assert runtime_kinds(builder.build()).tolist() == [RuntimeKind.SYNC, RuntimeKind.OTHER, RuntimeKind.OTHER]


def test_a_trace_without_calls():
    assert len(runtime_kinds(TraceBuilder().op("aten::mm", 0, 5).build())) == 0
