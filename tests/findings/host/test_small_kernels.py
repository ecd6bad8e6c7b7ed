from __future__ import annotations

import pytest

from lightning_perf.findings.host.host_work import host_work
from lightning_perf.findings.host.small_kernels import small_kernels
from lightning_perf.findings.kernels.autocast_tax import autocast_tax
from tests.findings.recordings import A100, BF16_GEMM, analysis, training
from tests.support.trace_builder import TraceBuilder


def pausing(pause_us: int) -> TraceBuilder:
    """Steps of 10 ms of compute, after which Python runs alone for a while."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for step in range(4):
        start = step * (10_000 + pause_us)
        builder.step(step, start, 10_000 + pause_us)
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


def test_many_small_kernels_that_were_queued_in_time() -> None:
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for step in range(3):
        start = step * 2000
        builder.step(step, start, 2000)
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
    for step in range(3):
        start = step * 2000
        builder.step(step, start, 2000)
        builder.op("aten::add", start, 300)
        builder.runtime("cudaGraphLaunch", start, 5, step + 1)
        for number in range(200):
            builder.kernel("elementwise", start + 10 + 9.9 * number, 7.9, step + 1)
    finding = small_kernels(analysis(builder))
    assert finding is not None
    assert "graph" not in finding.action
    assert finding.saving_low_ms == 0
    assert finding.saving_high_ms == pytest.approx(0.4 + 0.79, rel=0.02)


def test_casts_back_and_forth() -> None:
    def casting(rounds: int) -> TraceBuilder:
        builder = training()
        for step in range(4):
            for number in range(rounds):
                at = step * 10_020 + 640 + 20 * number
                source, target = ("c10::BFloat16", "float") if number % 2 == 0 else ("float", "c10::BFloat16")
                builder.op(
                    "aten::copy_", at, 10, types=[target, source], dims=[[64, 512], [64, 512]]
                )  # fmt: skip
                builder.launch(
                    f"copy_kernel_{target}", call_us=at + 2, call_duration_us=3,
                    start_us=step * 10_020 + 5000 + 100 * number, duration_us=90, stream=8,
                )  # fmt: skip
        return builder

    assert autocast_tax(analysis(casting(2))) is None
    finding = autocast_tax(analysis(casting(20)))
    assert finding is not None
    assert "torch.compile" in finding.action
    assert finding.evidence[0].startswith("10 tensors a step go to FP32 and back, 1.80 ms")
