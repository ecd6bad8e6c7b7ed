from __future__ import annotations

import pytest

from lightning_perf.findings.host import host_work
from tests.findings.recordings import A100, BF16_GEMM, analysis
from tests.support.trace_builder import TraceBuilder


def pausing(pause_us: int) -> TraceBuilder:
    """Steps of 10 ms of compute, after which Python runs alone for a while."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for start in builder.steps(4, 10_000 + pause_us):
        builder.annotation("perf::forward", start, 9_000)
        builder.op("aten::mm", start, 50)
        builder.launch(BF16_GEMM, call_us=start, call_duration_us=2, start_us=start + 2, duration_us=9_998)
    return builder


def test_python_holds_up_the_device() -> None:
    finding = host_work(analysis(pausing(1000)))
    assert finding is not None
    assert finding.saving_high_ms == pytest.approx(0.9, rel=0.01)
    assert "log_every_n_steps" in finding.action


@pytest.mark.parametrize(("pause_us", "fires"), [(290, False), (320, True)])
def test_threshold_of_3_percent(pause_us: int, fires: bool) -> None:
    assert (host_work(analysis(pausing(pause_us))) is not None) == fires
