from __future__ import annotations

import pytest

from lightning_perf.findings.kernels import unfused_optimizer
from tests.findings.host_recordings import on_processor
from tests.findings.recordings import A100, analysis
from tests.support.trace_builder import TraceBuilder


def updating(operator: str, optimizer: str = "AdamW", updates: int = 40) -> TraceBuilder:
    """Steps of 2000 µs; in the optimizer each update takes the host 20 µs and the device 5."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for start in builder.steps(3, 2000):
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


def on_cpu(*operators: str, name: str = "AdamW", threads: int = 4, update_us: float = 100) -> TraceBuilder:
    """Steps on a processor, the whole of each inside the optimizer's: 3 ms of forward and backward, ten updates."""
    builder = on_processor(threads=threads)
    step_us = 3000 + 10 * len(operators) * update_us
    for step in range(3):
        start = step * step_us
        builder.step(step, start, step_us).annotation(f"Optimizer.step#{name}.step", start, step_us)
        builder.op("aten::addmm", start + 10, 990)
        builder.op("autograd::engine::evaluate_function: AddmmBackward0", start + 1000, 2000)
        for number in range(10 * len(operators)):
            builder.op(operators[number % len(operators)], start + 3000 + number * update_us, update_us)
    return builder


ADAM = ("aten::lerp_", "aten::mul_", "aten::addcmul_", "aten::addcdiv_")


def test_a_loop_on_a_processor() -> None:
    finding = unfused_optimizer(analysis(on_cpu(*ADAM)))
    assert finding is not None
    assert "40 operators per step" in finding.evidence[0]
    assert finding.action == "Use torch.optim.AdamW(…, fused=True)."
    # 10 µs of the optimizer's step lie before the closure.
    assert (finding.saving_low_ms, finding.saving_high_ms) == (pytest.approx(4.01 * 0.4), pytest.approx(4.01 * 0.88))


def test_momentum_and_weight_decay_make_a_loop_of_plain_sgd() -> None:
    assert unfused_optimizer(analysis(on_cpu("aten::add_", name="SGD"))) is None
    for operator in ("aten::mul_", "aten::add"):
        finding = unfused_optimizer(analysis(on_cpu(operator, "aten::add_", name="SGD")))
        assert finding is not None
        assert finding.saving_low_ms == pytest.approx(2.01 * 0.2)


def test_tiny_parameters_may_win_nothing_where_threads_share_them() -> None:
    tiny = unfused_optimizer(analysis(on_cpu(*ADAM, update_us=9)))
    assert tiny is not None
    assert tiny.saving_low_ms == 0
    alone = unfused_optimizer(analysis(on_cpu(*ADAM, update_us=9, threads=1)))
    assert alone is not None
    assert alone.saving_low_ms == pytest.approx(0.37 * 0.4)


@pytest.mark.parametrize("operator", ["aten::_fused_adamw_", "aten::_foreach_add_"])
def test_what_is_no_loop_is_fine_on_a_processor(operator: str) -> None:
    assert unfused_optimizer(analysis(on_cpu(operator))) is None
