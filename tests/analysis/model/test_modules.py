"""The call tree of operators against a walk over the events, and origins and memory of operators."""

from collections import Counter
from pathlib import Path

import pytest

from lightning_perf.analysis.intervals import in_averaged_host_steps, in_averaged_steps
from lightning_perf.analysis.model.memory import memory
from lightning_perf.analysis.model.modules import ModuleRow, call_tree, forward_operator, modules
from lightning_perf.analysis.model.operators import operators
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.trace import Trace
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


def nested() -> TraceBuilder:
    builder = TraceBuilder()
    for at in builder.steps(2, 1000):
        builder.python("train.py(7): step", at, 900).python("<built-in method linear>", at + 5, 200)
        builder.op("aten::linear", at + 10, 100, dims=[[8, 4]]).op("aten::mm", at + 20, 50, dims=[[8, 4], [4, 2]])
        builder.launch("gemm", call_us=at + 30, call_duration_us=5, start_us=at + 40, duration_us=300)
        builder.op("aten::mm", at + 500, 40, dims=[[2, 2], [2, 2]])
        builder.memory(at + 25, 512, address=1).memory(at + 105, 128, address=2).memory(at + 510, -512, address=1)
    return builder


def brute_force(trace: Trace) -> dict[tuple[str, ...], list[int]]:
    """Calls, host total and device self time of each call path, event by event."""
    table = trace.operators
    inside = in_averaged_host_steps(trace, table.start_ns)
    ran = in_averaged_steps(trace, trace.device.start_ns)
    launched: Counter[int] = Counter()
    for row, operator in enumerate(trace.links.device_operator.tolist()):
        if operator >= 0 and ran[row]:
            launched[operator] += int(trace.device.duration_ns[row])
    found: dict[tuple[str, ...], list[int]] = {}
    for row in range(len(table)):
        if not inside[row] and not launched[row]:
            continue
        path, at = [], row
        while at >= 0 and (inside[at] or launched[at]):
            path.append(trace.names[table.name[at]])
            at = int(trace.links.operator_parent[at])
        sums = found.setdefault(tuple(reversed(path)), [0, 0, 0])
        sums[0] += bool(inside[row])
        sums[1] += int(table.duration_ns[row]) * bool(inside[row])
        sums[2] += launched[row]
    return found


def check(trace: Trace) -> None:
    tree = call_tree(trace, most=10**6)
    paths: list[tuple[str, ...]] = []
    expected = brute_force(trace)
    for row in tree.rows:
        above = paths[row.parent] if row.parent is not None else ()
        assert len(above) == row.depth
        paths.append((*above, row.name))
        assert expected[paths[-1]] == [row.calls, row.host_total_ns, row.device_self_ns or 0]
        below = [path for path in expected if path[: row.depth + 1] == paths[-1]]
        assert (row.device_total_ns or 0) == sum(expected[path][2] for path in below)
    assert sorted(paths) == sorted(expected)
    assert tree.left_out == 0


def test_the_call_tree_is_that_of_the_events():
    trace = nested().build()
    check(trace)
    first, second, third = call_tree(trace).rows
    assert [(row.name, row.depth, row.parent) for row in (first, second, third)] == [
        ("aten::linear", 0, None),
        ("aten::mm", 1, 0),
        ("aten::mm", 0, None),
    ]
    assert (first.host_total_ns, first.host_self_ns) == (200_000, 100_000)
    assert (first.device_total_ns, first.device_self_ns) == (600_000, 0)


@pytest.mark.corpus
@pytest.mark.parametrize(
    "pattern", ["kineto/resnet50_num_workers_0/worker0.1623143089861*", "tracelens/h100/Falc*", "hta/cpu_only/*"]
)
def test_the_call_tree_of_a_real_recording(corpus: Path, pattern: str):
    check(read_trace(next((corpus / "traces").glob(pattern))))


def test_the_cheapest_call_paths_are_left_out():
    tree = call_tree(nested().build(), most=2)
    assert [row.name for row in tree.rows] == ["aten::linear", "aten::mm"]
    assert tree.left_out == 1


def test_operators_name_their_shapes_and_stacks():
    mm, linear = (next(row for row in operators(nested().build()).rows if row.name == name) for name in MM_AND_LINEAR)
    assert [(each.shapes, each.calls, each.host_self_ns, each.device_self_ns) for each in mm.shapes] == [
        ("[[8,4],[4,2]]", 2, 100_000, 600_000),
        ("[[2,2],[2,2]]", 2, 80_000, 0),
    ]
    assert [(each.frames, each.calls) for each in mm.stacks] == [(("train.py(7): step",), 2)] * 2
    assert linear.stacks[0].frames == ("train.py(7): step",)
    assert sum(each.host_self_ns for each in mm.stacks) == mm.host_self_ns


MM_AND_LINEAR = ("aten::mm", "aten::linear")


def test_memory_belongs_to_the_innermost_operator():
    value = known(memory(nested().build()))
    mm, linear = value.devices[0].operators
    # Each step: `aten::mm` inside `aten::linear` allocates 512 bytes, and a later `aten::mm` frees them.
    assert (mm.operator, mm.allocations, mm.frees, mm.allocated_bytes, mm.growth_bytes) == ("aten::mm", 2, 2, 1024, 0)
    assert (linear.operator, linear.allocations, linear.growth_bytes) == ("aten::linear", 2, 256)
