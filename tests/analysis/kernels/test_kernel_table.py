from __future__ import annotations

from collections import defaultdict

import msgspec
import pytest

from lightning_perf.analysis.kernels.kernel_table import KernelLauncher, KernelTable, kernels
from lightning_perf.analysis.model.operators import operators
from tests.support.trace_builder import TraceBuilder


def test_runs_of_a_kernel_are_summed_up():
    filled = {"blocks per SM": 2.0, "est. achieved occupancy %": 50}
    thin = {"blocks per SM": 0.5, "est. achieved occupancy %": 10}
    trace = (
        TraceBuilder()
        .step(1, 0, 500)
        .op("aten::addmm", 0, 50, types=["c10::Half", "c10::Half"])
        .op("aten::mm", 60, 10, types=["c10::Half"])
        .launch("gemm", call_us=10, call_duration_us=5, start_us=60, duration_us=30, **filled)
        .launch("gemm", call_us=20, call_duration_us=5, start_us=100, duration_us=10, **thin)
        .launch("gemm", call_us=62, call_duration_us=5, start_us=120, duration_us=5)
        .launch("gemm", call_us=90, call_duration_us=5, start_us=130, duration_us=20)
        .memcpy("HtoD", 200, 35, bytes=4096)
        .build()
    )
    table = kernels(trace)
    assert table is not None
    gemm, copy = table.rows
    assert (gemm.name, gemm.category, gemm.calls, gemm.total_ns) == ("gemm", "device_compute", 4, 65_000)
    assert (gemm.mean_ns, gemm.min_ns, gemm.max_ns) == (16_250, 5_000, 30_000)
    assert gemm.share == pytest.approx(0.65)
    assert gemm.blocks_per_sm == pytest.approx((2 * 30 + 0.5 * 10) / 40)
    assert gemm.occupancy == pytest.approx((0.5 * 30 + 0.1 * 10) / 40)
    assert gemm.arithmetic == "fp16"
    assert gemm.launchers == (
        KernelLauncher("aten::addmm", 40_000),
        KernelLauncher(None, 20_000),
        KernelLauncher("aten::mm", 5_000),
    )
    assert (copy.category, copy.bytes, copy.arithmetic, copy.blocks_per_sm) == ("memcpy_h2d", 4096, None, None)
    assert (table.steps, table.device_ns) == (1, 100_000)


def test_arithmetic_is_that_of_most_of_the_time():
    builder = TraceBuilder().op("aten::add", 0, 10, types=["float"]).op("aten::add", 20, 10, types=["c10::BFloat16"])
    builder.launch("elementwise", call_us=2, call_duration_us=2, start_us=40, duration_us=5)
    builder.launch("elementwise", call_us=22, call_duration_us=2, start_us=50, duration_us=9)
    table = kernels(builder.build())
    assert table is not None
    assert [(row.calls, row.arithmetic) for row in table.rows] == [(2, "bf16")]


def test_no_device_gives_no_table():
    assert kernels(TraceBuilder().op("aten::mm", 0, 5).build()) is None


def test_only_the_steps_count():
    trace = TraceBuilder().kernel("before", 0, 5, 1).step(1, 10, 20).kernel("inside", 12, 2, 2).build()
    table = kernels(trace)
    assert table is not None
    assert [row.name for row in table.rows] == ["inside"]


@pytest.mark.corpus
def test_real_traces_against_a_loop(trace, row):
    table = kernels(trace)
    if table is None:
        assert len(trace.device) == 0
        return
    windows = [
        (start, end)
        for start, end, complete in zip(trace.steps.start_ns, trace.steps.end_ns, trace.steps.complete, strict=True)
        if complete or not trace.steps.complete.any()
    ]
    runs = defaultdict(list)
    for start, end, code in zip(trace.device.start_ns, trace.device.end_ns, trace.device.name, strict=True):
        if any(begin <= start < finish for begin, finish in windows):
            runs[trace.names[code]].append(int(end - start))
    assert {row.name: (row.calls, row.total_ns, row.min_ns, row.max_ns) for row in table.rows} == {
        kernel: (len(times), sum(times), min(times), max(times)) for kernel, times in runs.items()
    }
    if not trace.steps.marked:
        kernel_ns = sum(r.total_ns for r in table.rows if r.category in ("device_compute", "communication"))
        assert kernel_ns == row["device_sets_ns"]["kernel_time_sum_ns"]
    assert sum(row.total_ns for row in table.rows) == table.device_ns == operators(trace).device_ns
    assert [row.total_ns for row in table.rows] == sorted((row.total_ns for row in table.rows), reverse=True)
    assert all(sum(by.device_ns for by in row.launchers) <= row.total_ns for row in table.rows)
    assert all((row.arithmetic is None) == (row.category != "device_compute") for row in table.rows)
    assert msgspec.json.decode(msgspec.json.encode(table), type=KernelTable) == table
