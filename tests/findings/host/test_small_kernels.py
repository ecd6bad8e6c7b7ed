from __future__ import annotations

import pytest

from lightning_perf.findings.host.small_kernels import small_kernels
from tests.findings.recordings import A100, analysis, training
from tests.support.trace_builder import TraceBuilder


def test_many_small_kernels_that_were_queued_in_time() -> None:
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for start in builder.steps(3, 2000):
        builder.op("aten::add", start, 300)
        for number in range(200):
            builder.launch(
                "elementwise", call_us=start + number, call_duration_us=0.5,
                start_us=start + 10 + 9.9 * number, duration_us=7.9,
            )  # fmt: skip
    finding = small_kernels(analysis(builder))
    assert finding is not None
    # 200 gaps of 2 µs, and half of 200 kernels of 7.9 µs.
    assert finding.saving_high_ms == pytest.approx(0.4 + 0.79, rel=0.02)
    assert finding.saving_low_ms == pytest.approx(0.2, rel=0.02)
    assert small_kernels(analysis(training())) is None


def test_small_kernels_of_a_graph_are_not_told_to_become_one() -> None:
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for graph, start in enumerate(builder.steps(3, 2000), 1):
        builder.op("aten::add", start, 300)
        builder.runtime("cudaGraphLaunch", start, 5, graph)
        for number in range(200):
            builder.kernel("elementwise", start + 10 + 9.9 * number, 7.9, graph)
    finding = small_kernels(analysis(builder))
    assert finding is not None
    assert "graph" not in finding.action
    assert finding.saving_low_ms == 0
    assert finding.saving_high_ms == pytest.approx(0.4 + 0.79, rel=0.02)
