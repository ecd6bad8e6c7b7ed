from typing import Any

from lightning_perf.analysis.model.operators import ParameterShape, operator_calls
from tests.support.known import known
from tests.support.trace_builder import TraceBuilder

NODE = "autograd::engine::evaluate_function: "
BACKWARD = 2000


def training(dtype: str = "float", *, again: bool = False) -> TraceBuilder:
    """Two steps of 1,000 µs: a linear layer called twice, a loss, their backward pass, and an optimizer."""
    builder = TraceBuilder()
    for number in range(2):
        at, first = 1000 * number, 100 * number
        builder.step(number, at, 1000)
        builder.annotation("perf::forward", at + 10, 300).annotation("perf::backward", at + 320, 400)
        builder.annotation("perf::optimizer", at + 750, 200)
        for call in (0, 1):
            here = at + 20 + 100 * call
            inputs: dict[str, Any] = {"types": [dtype, "float", ""], "dims": [[4, 8], [8, 8], []]}
            strides: dict[str, Any] = {"Input Strides": [[8, 1], [8, 1], []], "Concrete Inputs": ["", "", ""]}
            builder.op("aten::linear", here, 60, sequence=first + 2 * call, **inputs, **strides)
            if again:
                builder.op("aten::linear", here + 5, 50, types=["c10::BFloat16"] * 2, dims=[[4, 8], [8, 8]])
            builder.op("aten::addmm", here + 10, 40, sequence=first + 2 * call + 1)
        builder.op("aten::sum", at + 250, 10, sequence=first + 4, types=["float"], dims=[[4, 8]])
        # The node of `sum`, then those of the second and the first call: a transpose and a product each.
        for place, node in enumerate((4, 3, 2, 1, 0)):
            builder.op(f"{NODE}Node{node}", at + 330 + 50 * place, 40, sequence=first + node, forward_thread=1)
        builder.op(f"{NODE}torch::autograd::AccumulateGrad", at + 600, 20)
        builder.op("aten::detach", at + 605, 5, types=["float"], dims=[[8, 8]])
        builder.op("aten::add_", at + 760, 50, types=["float"], dims=[[8, 8]])
    return builder


def test_calls_have_the_time_of_both_passes() -> None:
    found = known(operator_calls(training().build()))
    assert (found.steps, found.on_device, found.autocast) == (2, False, None)
    assert [call.name for call in found.calls] == ["aten::linear", "aten::sum"]
    linear, total = found.calls
    assert (linear.calls, linear.forward_ns, linear.backward_ns) == (4, 4 * 60_000, 2 * 4 * 40_000)
    assert (total.calls, total.forward_ns, total.backward_ns) == (2, 2 * 10_000, 2 * 40_000)
    assert linear.has_backward
    assert linear.values == '["","",""]'
    assert linear.strides == "[[8,1],[8,1],[]]"
    assert found.order == (0, 0, 1)
    assert found.parameters == (ParameterShape((8, 8), "float", 1),)
    assert found.unmatched_ns == 2 * 20_000  # what adds to gradients belongs to no call


def test_autocast_shows_in_the_call_inside() -> None:
    found = known(operator_calls(training(again=True).build()))
    assert found.autocast == "bfloat16"
    assert [call.name for call in found.calls] == ["aten::linear", "aten::sum"]


def test_inputs_of_another_type_are_another_call() -> None:
    builder = training()
    other = training("c10::BFloat16")
    for event in other.events:
        event["ts"] += 5000
        if event["name"].startswith("ProfilerStep"):
            event["name"] = f"ProfilerStep#{int(event['ts'])}"
    builder.events += other.events
    found = known(operator_calls(builder.build()))
    assert [call.name for call in found.calls] == ["aten::linear", "aten::sum", "aten::linear"]
    assert found.steps == 4


def test_times_on_a_device_are_those_of_the_kernels() -> None:
    builder = training()
    builder.launch("gemm", call_us=35, call_duration_us=5, start_us=40, duration_us=200)
    found = known(operator_calls(builder.build()))
    assert found.on_device
    assert found.calls[0].forward_ns == 200_000
    assert found.calls[0].backward_ns == 0


def test_without_a_forward_pass_there_are_no_calls() -> None:
    assert operator_calls(TraceBuilder().step(1, 0, 100).build()) is None
    assert operator_calls(TraceBuilder().op("aten::mm", 0, 10).build()) is not None
