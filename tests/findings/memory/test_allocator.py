from __future__ import annotations

import pytest

from lightning_perf.findings.memory import allocator
from tests.findings.recordings import analysis, training
from tests.support.trace_builder import TraceBuilder


def test_allocation_in_the_step() -> None:
    builder = training()
    for step in range(4):
        builder.runtime("cudaMalloc", step * 10_020, 20)
    assert allocator(analysis(builder)) is None  # 0.2 % of the step
    builder = TraceBuilder().step(1, 0, 1000).op("aten::empty", 0, 500).runtime("cudaMalloc", 10, 400)
    builder.launch("gemm", call_us=500, call_duration_us=5, start_us=510, duration_us=490)
    finding = allocator(analysis(builder))
    assert finding is not None
    assert (finding.saving_low_ms, finding.saving_high_ms) == (pytest.approx(0.2), pytest.approx(0.4))
