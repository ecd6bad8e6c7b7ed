import pytest

from lightning_perf.analysis.steps.categories import RuntimeKind, call_kind, runtime_kinds
from tests.support.trace_builder import TraceBuilder


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaDeviceSynchronize", "SYNC"),
        ("cudaStreamSynchronize", "SYNC"),
        ("cuCtxSynchronize", "SYNC"),
        ("hipEventSynchronize", "SYNC"),
        ("cudaStreamWaitEvent", "OTHER"),
        ("cudaEventQuery", "OTHER"),
        ("cudaMalloc", "ALLOC"),
        ("cudaMallocAsync", "ALLOC"),
        ("cudaFree", "ALLOC"),
        ("cudaHostAlloc", "ALLOC"),
        ("cuMemAlloc_v2", "ALLOC"),
        ("cuMemSetAccess", "ALLOC"),
        ("hipHostMalloc", "ALLOC"),
        ("hipExtMallocWithFlags", "ALLOC"),
        ("cudaMemcpyAsync", "OTHER"),
        ("cuMemcpyDtoDAsync", "OTHER"),
        ("cudaGetDevice", "OTHER"),
        ("cudaMemcpy", "SYNC"),
        ("hipMemcpyWithStream", "SYNC"),
        ("cudaMemcpyPeer", "OTHER"),
        ("urEventWait", "SYNC"),
        ("zeCommandQueueSynchronize", "SYNC"),
        ("urEnqueueEventsWait", "OTHER"),
        ("urUSMDeviceAlloc", "ALLOC"),
        ("zeMemFree", "ALLOC"),
    ],
)
def test_calls_by_name(name, kind):
    assert call_kind(name) is RuntimeKind[kind]


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
