import pytest

from lightning_perf.analysis.steps.phase_timeline import (
    PHASES,
    has_own_marks,
    is_backward_node,
    mark_phase,
    marks_by_phase,
)
from tests.support.trace_builder import FETCH, TraceBuilder


@pytest.mark.parametrize("phase", PHASES)
def test_our_own_ranges_are_named_after_the_phases(phase):
    assert mark_phase(f"perf::{phase}") == phase
    assert mark_phase(f"perf::{phase}#3") == phase


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("autograd::engine::evaluate_function: AddmmBackward0", True),
        ("CudnnConvolutionBackward", True),
        ("struct torch::autograd::CopyBackwards", True),
        ("torch::autograd::AccumulateGrad", True),
        ("CompiledFunctionBackward", True),
        ("aten::convolution_backward", False),
        ("aten::mm", False),
    ],
)
def test_nodes_of_the_backward_graph(name, node):
    assert is_backward_node(name) is node


def test_our_ranges_silence_those_of_strangers():
    builder = TraceBuilder().annotation(FETCH, 0, 10).annotation("Optimizer.step#SGD.step", 50, 10)
    trace = builder.build()
    assert not has_own_marks(trace)
    assert set(marks_by_phase(trace)) == {"fetch", "optimizer"}
    trace = builder.annotation("perf::fetch", 0, 12).build()
    assert has_own_marks(trace)
    assert {name: marks.end_ns.tolist() for name, marks in marks_by_phase(trace).items()} == {"fetch": [12_000]}
