from __future__ import annotations

import pytest

from lightning_perf.analysis.optimizers import optimizer_steps
from tests.support.trace_builder import TraceBuilder


def recording(*operators: str) -> TraceBuilder:
    builder = TraceBuilder().step(1, 0, 1000).annotation("Optimizer.step#Adam.step", 500, 200)
    builder.launch("forward", call_us=10, call_duration_us=5, start_us=20, duration_us=100)
    for number, name in enumerate(operators):
        at = 510 + 20 * number
        builder.op(name, at, 15)
        builder.launch("update", call_us=at + 2, call_duration_us=3, start_us=at + 10, duration_us=4)
    return builder


@pytest.mark.parametrize(
    ("operators", "implementation"),
    [
        (("aten::mul_", "aten::addcdiv_"), "loop"),
        (("aten::_foreach_mul_", "aten::add_"), "foreach"),
        (("aten::_fused_adam_", "aten::_foreach_add_"), "fused"),
        (("vendor::step",), None),
    ],
)
def test_figures(operators: tuple[str, ...], implementation: str | None) -> None:
    found = optimizer_steps(recording(*operators).build())
    assert found is not None
    assert (found.name, found.implementation) == ("Adam", implementation)
    assert (found.calls, found.operators, found.launches) == (1, len(operators), len(operators))
    assert (found.host_ns, found.device_ns) == (200_000, 4_000 * len(operators))


def test_zero_grad_is_no_step() -> None:
    assert optimizer_steps(TraceBuilder().annotation("Optimizer.zero_grad#Adam.zero_grad", 0, 5).build()) is None
