import numpy as np
import pytest

from lightning_perf.analysis.steps.breakdown import (
    PHASES,
    has_own_marks,
    host_phases,
    is_backward_node,
    mark_phase,
    marks_by_phase,
    phases_at,
)
from tests.support.trace_builder import FETCH, TraceBuilder

NODE = "autograd::engine::evaluate_function: MulBackward0"
AUTOGRAD = 2000


def spans(trace, phase):
    found = host_phases(trace)[phase]
    return list(zip((found.start_ns // 1000).tolist(), (found.end_ns // 1000).tolist(), strict=True))


def test_a_pause_of_the_engine_is_backward_unless_the_training_thread_goes_on():
    builder = TraceBuilder().step(1, 0, 100)
    for start in (10, 20, 50):
        builder.op(NODE, start, 5, thread=AUTOGRAD)
    assert spans(builder.build(), "backward") == [(10, 55)]
    assert spans(builder.op("aten::mm", 30, 5).build(), "backward") == [(10, 25), (50, 55)]


def test_the_forward_ends_where_the_last_backward_of_its_step_begins():
    builder = TraceBuilder().step(1, 0, 100).step(2, 100, 100)
    for start in (0, 100):
        builder.op("aten::mm", start + 10, 10).op("aten::add", start + 25, 5)
        builder.op(NODE, start + 40, 20, thread=AUTOGRAD)
        builder.op("aten::norm", start + 70, 5)
    assert spans(builder.build(), "forward") == [(10, 30), (110, 130)]


def test_a_loader_on_its_own_thread_makes_nobody_wait():
    builder = TraceBuilder().step(1, 0, 100).annotation(FETCH, 10, 30, thread=3000).annotation(FETCH, 50, 5)
    assert spans(builder.build(), "fetch") == [(50, 55)]


def test_zeroing_gradients_in_a_closure_is_the_optimizers():
    builder = TraceBuilder().step(1, 0, 100).annotation("Optimizer.step#SGD.step", 5, 90).op("aten::mm", 10, 10)
    builder.annotation("Optimizer.zero_grad#SGD.zero_grad", 20, 10).op("aten::zero_", 21, 8).op("aten::mean", 32, 3)
    trace = builder.op(NODE, 40, 20, thread=AUTOGRAD).op("aten::add_", 70, 5).build()
    assert spans(trace, "forward") == [(10, 20), (32, 35)]
    assert spans(trace, "optimizer") == [(5, 10), (20, 32), (35, 40), (60, 95)]


def test_no_two_phases_overlap():
    builder = TraceBuilder().step(1, 0, 100).annotation("perf::optimizer", 0, 100)
    builder.annotation("perf::forward", 10, 30).annotation("perf::transfer", 20, 5).annotation("perf::backward", 35, 30)
    trace = builder.annotation("perf::validation", 60, 10).build()
    assert spans(trace, "transfer") == [(20, 25)]
    assert spans(trace, "forward") == [(10, 20), (25, 35)]
    assert spans(trace, "backward") == [(35, 60)]
    assert spans(trace, "validation") == [(60, 70)]
    assert spans(trace, "optimizer") == [(0, 10), (70, 100)]


def test_the_phase_at_an_instant():
    trace = (
        TraceBuilder().step(1, 0, 100).annotation("perf::forward", 10, 30).annotation("perf::transfer", 20, 5).build()
    )
    instants = np.array([5, 10, 20, 25, 40]) * 1000
    found = [PHASES[code] for code in phases_at(trace, instants).tolist()]
    assert found == ["other", "forward", "transfer", "forward", "other"]


@pytest.mark.parametrize("phase", PHASES)
def test_our_own_ranges_are_named_after_the_phases(phase):
    assert mark_phase(f"perf::{phase}") == phase
    assert mark_phase(f"perf::{phase}#3") == phase


NODES = {
    "autograd::engine::evaluate_function: AddmmBackward0", "CudnnConvolutionBackward", "CompiledFunctionBackward",
    "struct torch::autograd::CopyBackwards", "torch::autograd::AccumulateGrad",
}  # fmt: skip


def test_nodes_of_the_backward_graph():
    assert {name for name in (*NODES, "aten::convolution_backward", "aten::mm") if is_backward_node(name)} == NODES


def test_our_ranges_silence_those_of_strangers():
    builder = TraceBuilder().annotation(FETCH, 0, 10).annotation("Optimizer.step#SGD.step", 50, 10)
    trace = builder.build()
    assert not has_own_marks(trace)
    assert set(marks_by_phase(trace)) == {"fetch", "optimizer"}
    trace = builder.annotation("perf::fetch", 0, 12).build()
    assert has_own_marks(trace)
    assert {name: marks.end_ns.tolist() for name, marks in marks_by_phase(trace).items()} == {"fetch": [12_000]}
