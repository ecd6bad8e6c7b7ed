"""The rule for gradient checkpointing with free memory, on recordings with known times."""

from __future__ import annotations

import pytest

from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.findings.model.recompute import recompute
from tests.findings.recordings import A100, BF16_GEMM, STEP_US, STEPS
from tests.support.trace_builder import TraceBuilder


def repeating(*, share: float = 0.2, used: float = 0.3) -> TraceBuilder:
    """Steps in which a share of the device's time repeats the forward, at a share of its memory."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    reserved = round(used * A100["totalGlobalMem"])
    for step in range(STEPS):
        at = step * STEP_US
        repeated_us = share * STEP_US
        builder.step(step, at, 600)
        builder.op("aten::linear", at + 10, 50, sequence=step)
        builder.launch(
            BF16_GEMM, call_us=at + 20, call_duration_us=8, start_us=at + 30, duration_us=9960 - repeated_us
        )  # fmt: skip
        node = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
        builder.op(node, at + 300, 200, sequence=step, forward_thread=1, thread=2000)
        builder.op("aten::linear", at + 310, 50, sequence=100 + step, thread=2000)
        builder.launch(
            BF16_GEMM, call_us=at + 320, call_duration_us=8, start_us=at + 9990 - repeated_us,
            duration_us=repeated_us, thread=2000,
        )  # fmt: skip
        builder.memory(at + 50, 1024, address=step + 1, allocated=reserved // 2, reserved=reserved)
    return builder


def test_repeated_work_with_free_memory_is_found() -> None:
    analysis = analyze_rank(repeating().build())
    assert analysis.recompute is not None
    assert analysis.recompute.time_ns == STEPS * 2_000_000
    found = recompute(analysis)
    assert found is not None
    assert found.saving_high_ms is not None
    assert 1.0 < found.saving_high_ms <= 2.0
    assert found.saving_low_ms is not None
    assert found.saving_low_ms <= found.saving_high_ms / 4 + 0.01
    assert "uses 12.0 GiB of 40.0 GiB, 30.0 %" in found.evidence[0]


@pytest.mark.parametrize(("share", "used"), [(0.2, 0.6), (0.02, 0.3)])
def test_full_memory_or_little_repeated_work_is_no_finding(share: float, used: float) -> None:
    assert recompute(analyze_rank(repeating(share=share, used=used).build())) is None


def test_without_recorded_memory_there_is_none() -> None:
    builder = repeating()
    builder.events = [event for event in builder.events if event["name"] != "[memory]"]
    analysis = analyze_rank(builder.build())
    assert analysis.recompute is not None
    assert recompute(analysis) is None
