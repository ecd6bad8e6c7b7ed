"""The call tree of operators against a walk over the events, and origins and memory of operators."""

from collections import Counter
from pathlib import Path

import pytest

from lightning_perf.analysis.intervals import in_averaged_steps
from lightning_perf.analysis.model.memory import memory
from lightning_perf.analysis.model.modules import call_tree
from lightning_perf.analysis.model.operators import operators
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.trace import Trace
from tests.support.known import known
from tests.support.trace_builder import TraceBuilder


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
    inside = in_averaged_steps(trace, table.start_ns)
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
