import pytest

from lightning_perf.analysis.model.workload import optimizer_steps
from tests.support.known import known
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
    found = known(optimizer_steps(recording(*operators).build()))
    assert (found.name, found.implementation) == ("Adam", implementation)
    assert (found.operators, found.launches) == (len(operators), len(operators))
    assert found.operator_names == tuple(sorted(operators))
    assert (found.host_ns, found.device_ns) == (200_000, 4_000 * len(operators))


CLIPPED_BY_NORM = ("aten::_foreach_norm", "aten::add", "aten::_foreach_mul_")


@pytest.mark.parametrize(
    ("clipping", "clipped_us"),
    [(CLIPPED_BY_NORM, 20 + 20 + 15), (("aten::_foreach_clamp_min_", "aten::_foreach_clamp_max_"), 2 * 15)],
)
@pytest.mark.parametrize(
    ("operators", "implementation"),
    [(("aten::mul_", "aten::addcdiv_"), "loop"), (("aten::_foreach_addcdiv_",), "foreach")],
)
def test_clipping_is_no_part_of_the_optimizer(
    clipping: tuple[str, ...], clipped_us: int, operators: tuple[str, ...], implementation: str
) -> None:
    found = known(optimizer_steps(recording(*clipping, *operators).build()))
    assert found.implementation == implementation
    assert found.operator_names == tuple(sorted(operators))
    assert found.host_ns == 1000 * (200 - clipped_us)


def test_zero_grad_is_no_step() -> None:
    assert optimizer_steps(TraceBuilder().annotation("Optimizer.zero_grad#Adam.zero_grad", 0, 5).build()) is None


@pytest.mark.parametrize("own_marks", [False, True])
def test_a_closure_that_the_step_runs_is_not_the_optimizers(own_marks: bool) -> None:
    """As under Lightning's automatic optimization: the whole training step runs inside ``optimizer.step``."""
    builder = TraceBuilder().step(1, 0, 1000).annotation("Optimizer.step#LBFGS.step", 20, 900)
    if own_marks:
        builder.annotation("perf::forward", 50, 300).annotation("perf::backward", 400, 300)
        builder.annotation("perf::optimizer", 700, 220)
    builder.op("aten::add_", 50, 300)
    builder.launch("forward", call_us=60, call_duration_us=5, start_us=70, duration_us=200)
    builder.annotation("Optimizer.zero_grad#LBFGS.zero_grad", 370, 20).op("aten::zero_", 370, 20)
    builder.launch("zero", call_us=372, call_duration_us=5, start_us=378, duration_us=4)
    builder.op("autograd::engine::evaluate_function: AddBackward0", 400, 300, thread=2000)
    builder.launch("backward", call_us=410, call_duration_us=5, start_us=420, duration_us=200, thread=2000)
    builder.op("aten::_foreach_add_", 710, 100)
    builder.launch("update", call_us=720, call_duration_us=5, start_us=730, duration_us=50)
    found = known(optimizer_steps(builder.build()))
    assert found.implementation == "foreach"
    assert (found.operators, found.launches, found.device_ns) == (1, 1, 50_000)
    # After the backward; without our marks also to the forward, from there to zeroing, and to the backward.
    assert found.host_ns == 1000 * (220 if own_marks else 30 + 20 + 10 + 220)
