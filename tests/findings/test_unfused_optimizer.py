from __future__ import annotations

import pytest

from lightning_perf.findings.unfused_optimizer import unfused_optimizer
from tests.findings.recordings import A100, analysis
from tests.support.trace_builder import TraceBuilder


def updating(operator: str, optimizer: str = "AdamW", updates: int = 40) -> TraceBuilder:
    """Steps of 2000 µs; in the optimizer each update takes the host 20 µs and the device 5."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for step in range(3):
        start = step * 2000
        builder.step(step, start, 2000)
        builder.op("aten::mm", start, 1100)
        builder.launch("gemm", call_us=start + 5, call_duration_us=5, start_us=start + 10, duration_us=1180)
        builder.annotation(f"Optimizer.step#{optimizer}.step", start + 1200, 800)
        for number in range(updates):
            at = start + 1200 + 20 * number
            builder.op(operator, at, 20)
            builder.launch("update", call_us=at + 5, call_duration_us=5, start_us=at + 12, duration_us=5)
    return builder


def test_a_loop_over_parameters() -> None:
    finding = unfused_optimizer(analysis(updating("aten::add_")))
    assert finding is not None
    assert "fused=True" in finding.action
    # The phase has 0.8 ms, of which half of the 0.2 ms on the device is taken to stay.
    assert finding.saving_high_ms == pytest.approx(0.7 * 0.9, rel=0.02)
    assert finding.saving_low_ms == pytest.approx(0.7 * 0.5, rel=0.02)


def test_foreach_gains_less() -> None:
    finding = unfused_optimizer(analysis(updating("aten::_foreach_add_")))
    assert finding is not None
    assert finding.saving_high_ms == pytest.approx(0.7 * 0.5, rel=0.02)


def test_fused_is_fine() -> None:
    assert unfused_optimizer(analysis(updating("aten::_fused_adamw_"))) is None


def test_an_optimizer_without_a_fused_version_gets_no_advice() -> None:
    assert unfused_optimizer(analysis(updating("aten::add_", optimizer="LBFGS"))) is None
