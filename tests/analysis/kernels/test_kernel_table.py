"""Kernels by cost, their launch configurations, and Tensor Cores by kernel and operator."""

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.analysis.kernels.arithmetic import arithmetic
from lightning_perf.analysis.kernels.kernel_table import KernelLauncher, kernels
from lightning_perf.analysis.model.operators import operators
from lightning_perf.trace.reader import read_trace
from tests.support.known import known
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
    table = known(kernels(trace))
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
    table = known(kernels(builder.build()))
    assert [(row.calls, row.arithmetic) for row in table.rows] == [(2, "bf16")]


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


def configuration(grid: list[int], block: list[int], registers: int, shared: int) -> dict[str, Any]:
    return {"grid": grid, "block": block, "registers per thread": registers, "shared memory": shared}


def test_a_kernel_shows_the_configuration_with_the_most_time():
    builder = TraceBuilder().kernel("k", 0, 10, **configuration([512, 2, 1], [128, 1, 1], 40, 400))
    builder.kernel("k", 20, 30, **configuration([64, 1, 1], [256, 1, 1], 32, 0)).kernel("bare", 60, 5)
    table = known(kernels(builder.memset(70, 1).build()))
    rows = {row.name: row for row in table.rows}
    row = rows["k"]
    assert (row.grid, row.block, row.registers, row.shared_bytes) == ((64, 1, 1), (256, 1, 1), 32, 0)
    assert row.configurations == 2
    for name in ("bare", "Memset (Device)"):
        row = rows[name]
        assert (row.grid, row.block, row.registers, row.shared_bytes, row.configurations) == (None,) * 4 + (0,)


def test_tensor_cores_by_kernel_and_operator():
    builder = TraceBuilder().gpu("NVIDIA A100", computeMajor=8, computeMinor=0)
    builder.op("aten::mm", 0, 50, types=["float", "float"], dims=[[8, 8], [8, 8]])
    builder.launch("ampere_sgemm_128x64_nn", call_us=10, call_duration_us=5, start_us=20, duration_us=100)
    builder.launch("ampere_fp16_s16816gemm_fp16_x", call_us=20, call_duration_us=5, start_us=200, duration_us=300)
    builder.launch("who_knows", call_us=30, call_duration_us=5, start_us=600, duration_us=7)
    trace = builder.build()
    table = known(kernels(trace))
    found = {row.name: (row.tensor_cores, row.tensor_core_reason) for row in table.rows}
    assert found == {
        "ampere_sgemm_128x64_nn": (False, "tf32_off"),
        "ampere_fp16_s16816gemm_fp16_x": (True, None),
        "who_knows": (None, None),
    }
    (row,) = operators(trace).rows
    assert (row.device_self_ns, row.tensor_core_ns, row.tensor_core_reason) == (407_000, 300_000, "tf32_off")


@pytest.mark.corpus
@pytest.mark.parametrize("pattern", ["kineto/resnet50_num_workers_0/worker0.1623143089861*", "tracelens/h100/Falc*"])
def test_configurations_of_real_recordings(corpus: Path, pattern: str):
    path = next((corpus / "traces").glob(pattern))
    trace = read_trace(path)
    table, whole = kernels(trace), arithmetic(trace)
    assert table is not None
    assert whole is not None
    assert sum(row.total_ns for row in table.rows if row.tensor_cores) == whole.tensor_core_ns
    assert sum(row.tensor_core_ns or 0 for row in operators(trace).rows) == whole.tensor_core_ns
    seen: dict[str, Counter[Any]] = {}
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        if event.get("cat", "").lower() == "kernel":
            args = event["args"]
            key = tuple(args["grid"]), tuple(args["block"]), args["registers per thread"], args["shared memory"]
            seen.setdefault(event["name"], Counter())[key] += 1
    for row in table.rows:
        if row.grid is not None:
            assert (row.grid, row.block, row.registers, row.shared_bytes) in seen[row.name]
