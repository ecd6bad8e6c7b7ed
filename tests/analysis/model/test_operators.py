from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.analysis.intervals import in_averaged_host_steps, merge
from lightning_perf.analysis.model.operators import ParameterShape, operator_calls, operators
from lightning_perf.trace.reader import read_trace
from tests.support.known import known
from tests.support.trace_builder import TraceBuilder


def test_self_and_total_times_of_nested_operators():
    trace = (
        TraceBuilder()
        .step(1, 0, 200)
        .op("aten::linear", 0, 50)
        .op("aten::addmm", 10, 30)
        .launch("gemm", call_us=15, call_duration_us=5, start_us=60, duration_us=40)
        .launch("bias", call_us=42, call_duration_us=5, start_us=100, duration_us=7)
        .op("aten::linear", 60, 20)
        .launch("triton", call_us=90, call_duration_us=5, start_us=120, duration_us=11)
        .build()
    )
    table = operators(trace)
    rows = {row.name: row for row in table.rows}
    linear, addmm = rows["aten::linear"], rows["aten::addmm"]
    assert (linear.calls, linear.host_total_ns, linear.host_self_ns) == (2, 70_000, 40_000)
    assert (linear.device_total_ns, linear.device_self_ns) == (47_000, 7_000)
    assert (addmm.calls, addmm.host_total_ns, addmm.host_self_ns) == (1, 30_000, 30_000)
    assert (addmm.device_total_ns, addmm.device_self_ns) == (40_000, 40_000)
    assert [row.name for row in table.rows] == ["aten::addmm", "aten::linear"]
    assert (table.steps, table.device_ns, table.unattributed_device_ns) == (1, 58_000, 11_000)


def test_rows_by_shape_on_request():
    builder = TraceBuilder()
    for start, rows in ((0, 8), (10, 8), (20, 16)):
        builder.op("aten::mm", start, 5, dims=[[rows, 4], [4, 4]])
    builder.op("aten::mm", 30, 1)
    trace = builder.build()
    assert [(row.calls, row.input_shapes) for row in operators(trace).rows] == [(4, None)]
    assert [(row.calls, row.input_shapes) for row in operators(trace, by_shape=True).rows] == [
        (2, "[[8,4],[4,4]]"),
        (1, "[[16,4],[4,4]]"),
        (1, None),
    ]


def test_without_a_device_its_times_are_absent():
    table = operators(TraceBuilder().op("aten::mm", 0, 5).build())
    assert (table.device_ns, table.unattributed_device_ns) == (None, None)
    assert (table.rows[0].device_total_ns, table.rows[0].device_self_ns) == (None, None)


def test_recording_without_operators_gives_no_rows():
    table = operators(TraceBuilder().kernel("k", 0, 5, 1).build())
    assert (table.rows, table.unattributed_device_ns) == ((), 5_000)


def test_only_the_steps_count():
    trace = TraceBuilder().op("before", 0, 5).step(1, 10, 10).op("inside", 12, 2).op("after", 30, 2).build()
    assert [row.name for row in operators(trace).rows] == ["inside"]


@st.composite
def call_trees(draw):
    """Nested calls on two threads, parents first: (name, thread, start, duration, own device time, depth)."""
    calls = []

    def place(thread: int, start: int, end: int, depth: int) -> None:
        at = start
        while at < end and depth < 4 and draw(st.booleans()):
            begin = draw(st.integers(at, end - 1))
            finish = draw(st.integers(begin + 1, end))
            calls.append((draw(st.sampled_from("abc")), thread, begin, finish - begin, draw(st.integers(0, 5)), depth))
            # The first tick of a call is its own: there it launches.
            place(thread, begin + 1, finish, depth + 1)
            at = finish

    for thread in (1, 2):
        place(thread, 0, 40, 0)
    return calls


def brute_force(calls):
    """By recursion over the call tree, from the order in which `call_trees` lists it (parents first)."""
    sums = defaultdict(lambda: [0, 0, 0, 0, 0])

    def visit(row: int, names_above: tuple[str, ...]) -> tuple[int, int]:
        name, _, _, duration, own, depth = calls[row]
        inner_host, inner_device = 0, 0
        child = row + 1
        while child < len(calls) and calls[child][5] > depth:
            if calls[child][5] == depth + 1:
                host, device = visit(child, (*names_above, name))
                inner_host, inner_device = inner_host + host, inner_device + device
            child += 1
        entry = sums[name]
        entry[0] += 1
        entry[2] += duration - inner_host
        entry[4] += own
        if name not in names_above:
            entry[1] += duration
            entry[3] += own + inner_device
        return duration, own + inner_device

    for row, call in enumerate(calls):
        if call[5] == 0:
            visit(row, ())
    return {name: tuple(entry) for name, entry in sums.items()}


@settings(max_examples=80, deadline=None)
@given(call_trees())
def test_against_brute_force_recursion(calls):
    builder = TraceBuilder().step(1, 0, 2000)
    for name, thread, start, duration, own, _ in calls:
        builder.op(name, start * 10, duration * 10, thread=thread)
        if own:
            at = start * 10 + 1
            builder.launch("k", call_us=at, call_duration_us=2, start_us=1000, duration_us=own, thread=thread)
    found = {
        row.name: (
            row.calls,
            row.host_total_ns // 10_000,
            row.host_self_ns // 10_000,
            (row.device_total_ns or 0) // 1000,
            (row.device_self_ns or 0) // 1000,
        )
        for row in operators(builder.build()).rows
    }
    assert found == brute_force(calls)


def test_against_torchs_own_averages(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(20, 10), torch.nn.BatchNorm1d(10), torch.nn.ReLU())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            model(torch.zeros(4, 20)).sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    rows = {row.name: row for row in operators(read_trace(tmp_path / "trace.json")).rows}
    averages = profiler.key_averages()
    assert {entry.key for entry in averages} == set(rows)
    for entry in averages:
        row = rows[entry.key]
        # It takes an operator whose only child bears its name (the backward of a sum) for one call.
        assert row.calls == entry.count or (entry.key == "aten::sum" and row.calls > entry.count)
        # Times in microseconds there, cut off at each call.
        assert row.host_self_ns / 1000 == pytest.approx(entry.self_cpu_time_total, abs=0.01 * entry.count)
        assert row.host_total_ns / 1000 == pytest.approx(entry.cpu_time_total, abs=0.01 * entry.count)


@pytest.mark.corpus
def test_times_of_real_traces_are_all_accounted_for(trace):
    table = operators(trace)
    if table.device_ns is not None:
        assert sum(row.device_self_ns for row in table.rows) + table.unattributed_device_ns == table.device_ns
    counted = in_averaged_host_steps(trace, trace.operators.start_ns)
    # Operators nest, so that their self times are the time any operator runs on a thread.
    busy = 0
    for thread in np.unique(trace.operators.thread):
        rows = (trace.operators.thread == thread) & counted
        busy += merge(trace.operators.start_ns[rows], trace.operators.end_ns[rows]).length_ns
    (host_ns, calls), by_shape = (
        (sum(row.host_self_ns for row in each.rows), sum(row.calls for row in each.rows))
        for each in (table, operators(trace, by_shape=True))
    )
    assert abs(host_ns - busy) <= 1e-3 * busy
    assert by_shape == (host_ns, calls)


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
