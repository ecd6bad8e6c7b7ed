"""Grid, block, registers and shared memory of kernels, and Tensor Cores by kernel and operator."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.analysis.kernels.arithmetic import arithmetic
from lightning_perf.analysis.kernels.kernel_table import kernels
from lightning_perf.analysis.model.operators import operators
from lightning_perf.trace.reader import read_trace
from tests.support.trace_builder import TraceBuilder


def configuration(grid: list[int], block: list[int], registers: int, shared: int) -> dict[str, Any]:
    return {"grid": grid, "block": block, "registers per thread": registers, "shared memory": shared}


def test_a_kernel_shows_the_configuration_with_the_most_time():
    builder = TraceBuilder().kernel("k", 0, 10, **configuration([512, 2, 1], [128, 1, 1], 40, 400))
    builder.kernel("k", 20, 30, **configuration([64, 1, 1], [256, 1, 1], 32, 0)).kernel("bare", 60, 5)
    table = kernels(builder.memset(70, 1).build())
    assert table is not None
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
    table = kernels(trace)
    assert table is not None
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
def test_real_recordings(corpus: Path, pattern: str):
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
