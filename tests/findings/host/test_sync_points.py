from __future__ import annotations

import pytest

from lightning_perf.findings.host import sync_points
from lightning_perf.findings.kernels import cudnn_benchmark
from tests.findings.recordings import A100, analysis
from tests.support.trace_builder import TraceBuilder


def waiting(
    wait_us: int, drained_us: int, operator: str = "aten::item", call: str = "cudaStreamSynchronize"
) -> TraceBuilder:
    """In each step of 1000 µs the host waits for a kernel, and the device then has nothing to do for a while."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for start in builder.steps(3, 1000):
        builder.op("aten::mm", start, 20)
        builder.launch("first", call_us=start + 5, call_duration_us=5, start_us=start + 10, duration_us=490)
        builder.op(operator, start + 500 - wait_us, wait_us)
        builder.runtime(call, start + 500 - wait_us, wait_us)
        builder.op("aten::mm", start + 500, drained_us)
        builder.launch(
            "second", call_us=start + 500 + drained_us - 5, call_duration_us=5,
            start_us=start + 500 + drained_us, duration_us=500 - drained_us,
        )  # fmt: skip
    return builder


def test_a_wait_after_which_the_device_runs_dry() -> None:
    finding = sync_points(analysis(waiting(400, 200)))
    assert finding is not None
    # After the wait, and in the next step before its first kernel, of which the last has none.
    assert finding.saving_high_ms == pytest.approx((2 * 0.21 + 0.2) / 3)
    assert finding.saving_low_ms == pytest.approx(0.1)
    assert "aten::item (.item())" in finding.evidence[0]


def test_a_read_that_finds_an_empty_queue_is_not_told_of() -> None:
    builder = waiting(400, 200)
    for step in range(3):
        builder.op("aten::nonzero", 1000 * step + 2, 3).runtime("cudaStreamSynchronize", 1000 * step + 2, 1)
    finding = sync_points(analysis(builder))
    assert finding is not None
    assert "once per step" in finding.title
    (evidence,) = finding.evidence
    assert "aten::item" in evidence


def test_no_more_is_won_than_was_waited() -> None:
    finding = sync_points(analysis(waiting(50, 200)))
    assert finding is not None
    assert finding.saving_high_ms == pytest.approx(0.05)


def test_a_wait_that_costs_nothing_is_no_finding() -> None:
    assert sync_points(analysis(waiting(400, 10))) is None


def test_measurements_of_cudnn_are_told_apart() -> None:
    recorded = analysis(waiting(400, 200, "aten::conv2d", "cudaEventSynchronize"))
    assert sync_points(recorded) is None
    finding = cudnn_benchmark(recorded)
    assert finding is not None
    assert finding.saving_low_ms == pytest.approx(0.4)
    assert cudnn_benchmark(analysis(waiting(400, 200))) is None


def test_what_the_progress_bar_reads_is_told_from_what_the_model_reads() -> None:
    def read(phase: str) -> TraceBuilder:
        builder = waiting(400, 200)
        for step in range(3):
            builder.annotation(f"perf::{phase}", 1000 * step, 800)
        return builder

    inside, between = (sync_points(analysis(read(phase))) for phase in ("forward", "checkpoint"))
    assert inside is not None
    assert between is not None
    assert "aten::item (.item()) in forward: 1 per step" in inside.evidence[0]
    assert "instead of loss.item()" in inside.action
    assert "while a checkpoint is saved" in between.evidence[0]
    builder = waiting(400, 200).annotation("perf::forward", 0, 50)
    (finding,) = [sync_points(analysis(builder))]
    assert finding is not None
    assert "in a callback, a logger or the progress bar" in finding.evidence[0]
    assert "refresh_rate" in finding.action
    # Of a recording that others made nobody knows what runs between phases.
    foreign = sync_points(analysis(waiting(400, 200)))
    assert foreign is not None
    assert "progress bar" not in f"{foreign.evidence[0]}{foreign.action}"
