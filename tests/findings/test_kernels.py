"""Kernels that another setting avoids, on recordings with known times."""

from __future__ import annotations

import pytest

from lightning_perf.findings.kernels import channels_last, unfused_optimizer
from tests.findings.host_recordings import on_processor
from tests.findings.recordings import A100, Rule, analysis, finding_of, saving_of, training
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
    finding = finding_of(unfused_optimizer, updating("aten::add_"))
    assert "fused=True" in finding.action
    # The phase has 0.8 ms, of which half of the 0.2 ms on the device is taken to stay.
    assert saving_of(finding) == pytest.approx((0.7 * 0.5, 0.7 * 0.9), rel=0.02)
    in_groups = finding_of(unfused_optimizer, updating("aten::_foreach_add_"))
    assert in_groups.saving_high_ms == pytest.approx(0.7 * 0.5, rel=0.02)


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
    finding = finding_of(unfused_optimizer, on_cpu(*ADAM))
    assert "40 operators per step" in finding.evidence[0]
    assert finding.action == "Use torch.optim.AdamW(…, fused=True)."
    # 10 µs of the optimizer's step lie before the closure.
    assert saving_of(finding) == pytest.approx((4.01 * 0.4, 4.01 * 0.88))


def test_momentum_and_weight_decay_make_a_loop_of_plain_sgd() -> None:
    for operator in ("aten::mul_", "aten::add"):
        finding = finding_of(unfused_optimizer, on_cpu(operator, "aten::add_", name="SGD"))
        assert finding.saving_low_ms == pytest.approx(2.01 * 0.2)


def test_tiny_parameters_may_win_nothing_where_threads_share_them() -> None:
    tiny = finding_of(unfused_optimizer, on_cpu(*ADAM, update_us=9))
    assert tiny.saving_low_ms == 0
    alone = finding_of(unfused_optimizer, on_cpu(*ADAM, update_us=9, threads=1))
    assert alone.saving_low_ms == pytest.approx(0.37 * 0.4)


def converting(name: str = "void cudnn::ops::nchwToNhwcKernel<__half>") -> TraceBuilder:
    """Steps of 10 ms with a kernel of 800 µs before a convolution."""
    builder = training()
    for step in range(4):
        at = step * 10_020 + 620
        builder.op("aten::cudnn_convolution", at, 30)
        builder.launch(
            name, call_us=at + 5, call_duration_us=5, start_us=at + 1000, duration_us=800, stream=8
        )  # fmt: skip
    return builder


@pytest.mark.parametrize(
    ("rule", "recorded", "fires"),
    [
        (channels_last, converting(), True),
        (channels_last, converting("elementwise"), False),
        (unfused_optimizer, updating("aten::_fused_adamw_"), False),
        (unfused_optimizer, updating("aten::add_", optimizer="LBFGS"), False),
        (unfused_optimizer, on_cpu("aten::add_", name="SGD"), False),
        (unfused_optimizer, on_cpu("aten::_fused_adamw_"), False),
        (unfused_optimizer, on_cpu("aten::_foreach_add_"), False),
    ],
)
def test_a_rule_fires_from_its_threshold_on(rule: Rule, recorded: TraceBuilder, fires: bool) -> None:
    assert (rule(analysis(recorded)) is not None) == fires
