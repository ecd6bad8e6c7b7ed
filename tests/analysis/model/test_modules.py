import pytest

from lightning_perf.analysis.model.modules import ModuleRow, forward_operator, modules
from tests.support.known import known
from tests.support.trace_builder import TraceBuilder

ENGINE = 2000


def training(prefix: str) -> TraceBuilder:
    builder = TraceBuilder().step(1, 0, 1000)
    mark = builder.python if prefix.startswith("nn.Module") else builder.annotation
    mark(f"{prefix}Net_0", 0, 200)
    mark(f"{prefix}Conv2d_0", 10, 40)
    mark(f"{prefix}Conv2d_0", 60, 40)
    mark(f"{prefix}Linear_0", 110, 60)
    builder.op("aten::conv2d", 12, 30, sequence=1)
    builder.launch("conv", call_us=20, call_duration_us=5, start_us=60, duration_us=50)
    builder.op("aten::conv2d", 62, 30, sequence=2)
    builder.launch("conv", call_us=70, call_duration_us=5, start_us=110, duration_us=50)
    builder.launch("triton", call_us=120, call_duration_us=5, start_us=160, duration_us=7)
    builder.op("aten::add", 180, 10, sequence=3)
    builder.launch("add", call_us=182, call_duration_us=5, start_us=190, duration_us=3)
    builder.op("AddBackward0", 300, 10, sequence=3, forward_thread=1, thread=ENGINE)
    builder.launch("grad", call_us=302, call_duration_us=5, start_us=310, duration_us=4, thread=ENGINE)
    builder.op("ConvBackward0", 320, 30, sequence=2, forward_thread=1, thread=ENGINE)
    builder.op("aten::convolution_backward", 322, 20, thread=ENGINE)
    builder.launch("wgrad", call_us=325, call_duration_us=5, start_us=340, duration_us=80, thread=ENGINE)
    builder.op("Optimizer", 500, 50)
    return builder.launch("adam", call_us=510, call_duration_us=5, start_us=520, duration_us=11)


@pytest.mark.parametrize(("prefix", "source"), [("nn.Module: ", "python"), ("[pl][module]", "annotations")])
def test_forward_and_backward_of_a_tree(prefix, source):
    tree = known(modules(training(prefix).build()))
    assert tree.rows == (
        ModuleRow("Net_0", 0, None, 1, 200_000, 60_000, 110_000, 3_000, 40_000, 84_000),
        ModuleRow("Conv2d_0", 1, 0, 2, 80_000, 80_000, 100_000, 100_000, 30_000, 80_000),
        ModuleRow("Linear_0", 1, 0, 1, 60_000, 60_000, 7_000, 7_000, 0, 0),
    )
    assert (tree.source, tree.steps, tree.device_ns, tree.unattributed_device_ns) == (source, 1, 205_000, 11_000)


def test_module_called_by_two_others_is_in_two_places():
    builder = TraceBuilder()
    for n, caller in enumerate(("Encoder_0", "Decoder_0")):
        builder.python(f"nn.Module: {caller}", 100 * n, 80).python("nn.Module: Embedding_0", 100 * n + 10, 20 + n)
    tree = known(modules(builder.build()))
    assert [(row.name, row.depth, row.parent, row.host_total_ns) for row in tree.rows] == [
        ("Decoder_0", 0, None, 80_000),
        ("Embedding_0", 1, 0, 21_000),
        ("Encoder_0", 0, None, 80_000),
        ("Embedding_0", 1, 2, 20_000),
    ]
    assert (tree.device_ns, tree.rows[0].device_total_ns, tree.rows[0].backward_host_ns) == (None, None, None)


def test_call_that_begins_before_the_first_operator_counts():
    tree = known(modules(TraceBuilder().python("nn.Module: Net_0", 0, 50).op("aten::mm", 10, 5).build()))
    assert [(row.name, row.calls) for row in tree.rows] == [("Net_0", 1)]


def test_calls_outside_of_the_steps_do_not_count():
    builder = TraceBuilder().python("nn.Module: Net_0", 0, 50).step(1, 60, 100).op("aten::mm", 70, 5)
    tree = known(modules(builder.python("nn.Module: Net_0", 65, 20).build()))
    assert [(row.name, row.calls, row.host_total_ns) for row in tree.rows] == [("Net_0", 1, 20_000)]


@pytest.mark.corpus
def test_real_traces(trace):
    tree = modules(trace)
    recorded = any(name.startswith("nn.Module: ") for name in trace.names)
    assert (tree is not None) == recorded
    if tree is None:
        return
    assert all(r.host_self_ns <= r.host_total_ns for r in tree.rows)
    for at, r in enumerate(tree.rows):
        inner = [child for child in tree.rows if child.parent == at]
        assert r.host_self_ns + sum(child.host_total_ns for child in inner) == r.host_total_ns
        assert r.device_self_ns + sum(child.device_total_ns for child in inner) == r.device_total_ns
        assert all(child.depth == r.depth + 1 for child in inner)
    tops = [r for r in tree.rows if r.parent is None]
    attributed = sum(r.device_total_ns + (r.backward_device_ns or 0) for r in tops)
    assert attributed + tree.unattributed_device_ns == tree.device_ns


def owners(trace):
    owner, root = forward_operator(trace)
    names = [trace.names[code] for code in trace.operators.name]
    linked = {} if owner is None else {names[row]: names[own] for row, own in enumerate(owner) if own >= 0}
    return linked, {names[row]: names[r] for row, r in enumerate(root) if r >= 0}


def test_last_forward_operator_of_a_number_made_the_node():
    trace = (
        TraceBuilder()
        .op("aten::linear", 0, 50, sequence=7)
        .op("aten::addmm", 10, 30, sequence=7)
        .op("aten::relu", 60, 10, sequence=8)
        .op("autograd::engine::evaluate_function: ReluBackward0", 100, 20, sequence=8, forward_thread=1, thread=ENGINE)
        .op("ReluBackward0", 105, 10, sequence=8, forward_thread=1, thread=ENGINE)
        .op("aten::threshold_backward", 106, 5, thread=ENGINE)
        .op("AddmmBackward0", 130, 20, sequence=7, forward_thread=1, thread=ENGINE)
        .op("aten::mm", 132, 5, thread=ENGINE)
        .op("StrangerBackward0", 160, 5, sequence=99, forward_thread=1, thread=ENGINE)
        .build()
    )
    engine = "autograd::engine::evaluate_function: ReluBackward0"
    assert owners(trace) == (
        {engine: "aten::relu", "AddmmBackward0": "aten::addmm"},
        {
            engine: engine,
            "ReluBackward0": engine,
            "aten::threshold_backward": engine,
            "AddmmBackward0": "AddmmBackward0",
            "aten::mm": "AddmmBackward0",
            "StrangerBackward0": "StrangerBackward0",
        },
    )


def test_numbers_of_two_forward_threads_are_kept_apart():
    builder = TraceBuilder()
    for replica, thread in ((1, 3001), (2, 3002)):
        for sequence in range(replica, replica + 5):
            builder.op(f"replica{replica}::{sequence}", 10 * sequence, 5, sequence=sequence, thread=thread)
            builder.op(
                f"Backward{replica}{sequence}", 200 - 10 * sequence, 5, sequence=sequence,
                forward_thread=10 + replica, thread=ENGINE + replica,
            )  # fmt: skip
    linked, _ = owners(builder.build())
    assert linked == {f"Backward{r}{s}": f"replica{r}::{s}" for r in (1, 2) for s in range(r, r + 5)}


def test_recording_of_inference_links_nothing():
    assert owners(TraceBuilder().op("aten::mm", 0, 5).build()) == ({}, {})
