from __future__ import annotations

from lightning_perf.findings.precision import autocast_tax
from tests.findings.recordings import analysis, training
from tests.support.trace_builder import TraceBuilder


def casting(rounds: int) -> TraceBuilder:
    """Steps of 10 ms on a device in which tensors are cast to FP32 and back."""
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


def test_casts_back_and_forth() -> None:
    assert autocast_tax(analysis(casting(2))) is None
    finding = autocast_tax(analysis(casting(20)))
    assert finding is not None
    assert "torch.compile" in finding.action
    assert finding.evidence[0].startswith("10 tensors per step cast to FP32 and back: 1.80 ms")
