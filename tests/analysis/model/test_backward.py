from __future__ import annotations

from lightning_perf.analysis.model.modules import forward_operator
from tests.support.trace_builder import TraceBuilder

ENGINE = 2000


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
