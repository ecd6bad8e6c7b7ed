"""The rule for gradient checkpointing with free memory, on recordings with known times."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.findings.model import recompute
from lightning_perf.trace.metadata import PROCESSOR_KEY
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


def on_cpu(share: float = 0.3, **memory: Any) -> TraceBuilder:
    """Steps of 10 ms on a processor in which the backward repeats a share of the forward."""
    builder = TraceBuilder(**{PROCESSOR_KEY: {"name": "A CPU", "cores": 8, "threads": 1, "trains": True} | memory})
    for step, at in enumerate(builder.steps(STEPS, STEP_US)):
        repeated_us = share * STEP_US
        builder.op("aten::linear", at, 3000, sequence=step)
        node = "autograd::engine::evaluate_function: AddmmBackward0"
        builder.op(node, at + 3000, 6000, sequence=step, forward_thread=1)
        builder.op("aten::linear", at + 3100, repeated_us - 100, sequence=100 + step)  # after 100 µs of Python
    return builder


def test_a_processor_with_free_memory() -> None:
    found = recompute(analyze_rank(on_cpu(free_bytes=6 * 2**30, used_bytes=2 * 2**30).build()))
    assert found is not None
    assert (found.saving_low_ms, found.saving_high_ms) == pytest.approx((0.75, 3.0))
    assert "The training uses 2.00 GiB, and 6.00 GiB are free." in found.evidence[0]
    assert "gradient_checkpointing=False" in found.action
    assert recompute(analyze_rank(on_cpu(free_bytes=2**30, used_bytes=2 * 2**30).build())) is None
    assert recompute(analyze_rank(on_cpu(0.02, free_bytes=6 * 2**30, used_bytes=2**30).build())) is None


def test_a_processor_with_unknown_memory() -> None:
    found = recompute(analyze_rank(on_cpu().build()))
    assert found is not None
    assert found.saving_low_ms == 0
    assert "does not show how much memory is free" in found.evidence[0]


def test_a_backward_that_is_differentiated_repeats_nothing() -> None:
    builder = on_cpu(0.02)
    for step in range(STEPS):
        at = step * STEP_US
        builder.op("aten::mm", at + 3200, 2000, sequence=200 + step)
        node = "autograd::engine::evaluate_function: MmBackward0"
        builder.op(node, at + 9000, 500, sequence=200 + step, forward_thread=1)
    analysis = analyze_rank(builder.build())
    assert analysis.workload.second_derivative
    assert analysis.recompute is None
