from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.host import small_kernels
from lightning_perf.run_files.probe import Probe, ProbedChange
from tests.findings.recordings import A100, analysis, training
from tests.support.trace_builder import TraceBuilder


def queued() -> TraceBuilder:
    """Steps of 2 ms with 200 kernels of 7.9 µs and gaps of 2 µs, which are launched early."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for start in builder.steps(3, 2000):
        builder.op("aten::add", start, 300)
        for number in range(200):
            builder.launch(
                "elementwise", call_us=start + number, call_duration_us=0.5,
                start_us=start + 10 + 9.9 * number, duration_us=7.9,
            )  # fmt: skip
    return builder


def test_many_small_kernels_that_were_queued_in_time() -> None:
    finding = small_kernels(analysis(queued()))
    assert finding is not None
    # 200 gaps of 2 µs, and half of 200 kernels of 7.9 µs.
    assert finding.saving_high_ms == pytest.approx(0.4 + 0.79, rel=0.02)
    assert finding.saving_low_ms == pytest.approx(0.2, rel=0.02)
    assert small_kernels(analysis(training())) is None


def with_replay(recorded: RankAnalysis, low_ms: float, high_ms: float) -> RankAnalysis:
    """A rank with calls that a probe replayed from a CUDA graph."""
    middle = (low_ms + high_ms) / 2
    change = ProbedChange("cuda-graph", "CUDA graphs", middle * 1e6, low_ms * 1e6, high_ms * 1e6, 0.0, 1.5e6, 9)
    return replace(recorded, probe=Probe("A GPU", 0, (), 2e6, 1.6e6, 1.5e6, 5.0, (change,)))


def test_a_replay_narrows_the_range_or_leaves_fusing() -> None:
    recorded = analysis(queued())
    plain, probed, useless = (
        small_kernels(one) for one in (recorded, with_replay(recorded, 0.35, 0.42), with_replay(recorded, -0.01, 0.02))
    )
    assert plain is not None
    assert plain.basis == "general"
    assert "torch.compile(model). With" in plain.action
    assert probed is not None
    assert (probed.basis, probed.saving_low_ms, probed.saving_high_ms) == ("probed", 0.35, 0.42)
    assert 'mode="reduce-overhead"' in probed.action
    assert useless is not None
    assert "graph" not in useless.action
    assert (useless.saving_low_ms, useless.saving_high_ms) == (0, pytest.approx(0.79, rel=0.02))


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
