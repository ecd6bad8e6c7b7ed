from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.trace.columns import NO_ROW, DeviceKind, Spans
from lightning_perf.trace.indexing import enclosing_rows, parent_rows
from lightning_perf.trace.trace import Trace, is_launch_name
from tests.support.trace_builder import TraceBuilder


def test_device_work_leads_to_its_call_and_the_innermost_operator() -> None:
    trace = (
        TraceBuilder()
        .op("aten::linear", 0, 100)
        .op("aten::addmm", 10, 50)
        .op("elsewhere", 0, 100, thread=2)
        .runtime("cudaLaunchKernel", 20, 5, 1)
        .kernel("gemm", 40, 10, 1)
        .runtime("cudaMemcpyAsync", 70, 5, 2)
        .memcpy("HtoD", 80, 10, 2)
        .build()
    )
    links = trace.links
    assert links.device_runtime.tolist() == [0, 1]
    assert [trace.names[trace.operators.name[row]] for row in links.device_operator] == ["aten::addmm", "aten::linear"]
    assert links.is_launch.tolist() == [True, False]


@pytest.mark.parametrize(
    ("builder", "calls"),
    [
        (  # one graph launch starts many kernels
            TraceBuilder().runtime("cudaGraphLaunch", 0, 5, 9).kernel("a", 10, 5, 9).kernel("b", 20, 5, 9),
            [0, 0],
        ),
        (  # of repeated correlations the nearest call before counts
            TraceBuilder()
            .runtime("cudaLaunchKernel", 0, 1, 5)
            .kernel("a", 10, 1, 5)
            .runtime("cudaLaunchKernel", 100, 1, 5)
            .kernel("b", 110, 1, 5),
            [0, 1],
        ),
        (TraceBuilder().runtime("cudaLaunchKernel", 10, 5, 5).kernel("a", 9.5, 1, 5), [0]),  # the clock is skewed
    ],
)
def test_the_call_of_device_work(builder: TraceBuilder, calls: list[int]) -> None:
    links = builder.build().links
    assert links.device_runtime.tolist() == calls
    assert links.is_launch.all()


def test_without_a_correlation_nothing_links() -> None:
    trace = TraceBuilder().runtime("cudaLaunchKernel", 0, 5).kernel("a", 10, 1).kernel("b", 20, 1, 7).build()
    assert trace.links.device_runtime.tolist() == [NO_ROW, NO_ROW]
    assert trace.links.device_operator.tolist() == [NO_ROW, NO_ROW]
    assert trace.links.is_launch.tolist() == [True]  # by its name: its work was not recorded


LAUNCHES = (
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx", "cudaGraphLaunch", "hipLaunchKernel",
    "hipExtModuleLaunchKernel", "urEnqueueKernelLaunch", "zeCommandListAppendLaunchKernel",
)  # fmt: skip
OTHER_CALLS = (
    "urEnqueueUSMMemcpy", "cudaLaunchHostFunc", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize",
    "cudaMalloc",
)  # fmt: skip


def test_launch_names() -> None:
    assert {name for name in (*LAUNCHES, *OTHER_CALLS) if is_launch_name(name)} == set(LAUNCHES)


INTERVALS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12), st.integers(0, 1)), max_size=14)


def spans(intervals: list[tuple[int, int, int]]) -> Spans:
    rows = sorted((start, -(start + length), thread) for start, length, thread in intervals)
    columns: list[Any] = [np.array([row[i] for row in rows], dtype=np.int64) for i in range(3)]
    return Spans(columns[0], -columns[1], np.zeros(len(rows), dtype=np.int32), columns[2].astype(np.int32))


def innermost(table: Spans, before: int, start: int, end: int, thread: int) -> int:
    """By definition: of the rows before `before` that contain the interval, the last."""
    found = NO_ROW
    for row in range(before):
        if table.thread[row] == thread and table.start_ns[row] <= start and table.end_ns[row] >= end:
            found = row
    return found


@settings(max_examples=300, deadline=None)
@given(INTERVALS)
def test_parents_by_brute_force(intervals: list[tuple[int, int, int]]) -> None:
    table = spans(intervals)
    expected = [
        innermost(table, row, table.start_ns[row], table.end_ns[row], table.thread[row]) for row in range(len(table))
    ]
    assert parent_rows(table).tolist() == expected


@settings(max_examples=300, deadline=None)
@given(INTERVALS, INTERVALS)
def test_enclosing_rows_by_brute_force(inside: list[tuple[int, int, int]], around: list[tuple[int, int, int]]) -> None:
    inner, outer = spans(inside), spans(around)
    expected = [
        innermost(outer, len(outer), inner.start_ns[row], inner.end_ns[row], inner.thread[row])
        for row in range(len(inner))
    ]
    assert enclosing_rows(inner, outer, parent_rows(outer)).tolist() == expected


DIFFERENT = {
    "hta/large_integer_trace/rank-70.Mar_25_20_48_12.2861.pt.trace.409ef99.json.gz": (
        "two events: the reference begins at the operator, ours at the kernel, which comes before it"
    )
}


def windows(builder: TraceBuilder) -> list[tuple[int, int, int]]:
    steps = builder.build().steps
    return list(zip(steps.number.tolist(), steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True))


WINDOWS = {
    "a step lasts until the device work that it launched ends": (
        TraceBuilder()
        .step(1, 0, 100)
        .launch("a", call_us=90, call_duration_us=5, start_us=110, duration_us=30)
        .step(2, 100, 100)
        .launch("b", call_us=150, call_duration_us=5, start_us=160, duration_us=10),
        [(1, 0, 140_000), (2, 140_000, 200_000)],
    ),
    "launches of other threads and of graphs count": (
        TraceBuilder()
        .step(1, 0, 100)
        .runtime("cudaGraphLaunch", 50, 5, 3, thread=77)
        .kernel("a", 60, 10, 3)
        .kernel("b", 120, 30, 3),
        [(1, 0, 150_000)],
    ),
    "the copy of a mark on the device is no step": (
        TraceBuilder().step(1, 0, 100).device("gpu_user_annotation", "ProfilerStep#1", 20, 500),
        [(1, 0, 100_000)],
    ),
    "duplicated and nested marks are one step": (
        TraceBuilder().step(1, 0, 100).step(1, 0, 100).step(7, 20, 30).step(2, 100, 50),
        [(1, 0, 100_000), (2, 100_000, 150_000)],
    ),
    "the windows of overlapping marks follow one another": (
        TraceBuilder().step(1, 0, 100).step(2, 80, 100),
        [(1, 0, 100_000), (2, 100_000, 180_000)],
    ),
    "a step that ends before the device work of the last one is empty": (
        TraceBuilder()
        .step(1, 0, 100)
        .launch("a", call_us=10, call_duration_us=5, start_us=20, duration_us=300)
        .step(2, 100, 100)
        .step(3, 200, 200),
        [(1, 0, 320_000), (2, 320_000, 320_000), (3, 320_000, 400_000)],
    ),
    "work queued before the recording belongs to the step before": (
        TraceBuilder()
        .step(5, 100, 100)
        .kernel("unknown", 90, 30, 77)
        .launch("own", call_us=110, call_duration_us=5, start_us=130, duration_us=10)
        .kernel("also unknown, but later", 150, 100, 78),
        [(5, 120_000, 200_000)],
    ),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_windows_of_steps(case: str) -> None:
    builder, expected = WINDOWS[case]
    assert windows(builder) == expected


def test_marks_with_bad_numbers_are_no_steps() -> None:
    builder = TraceBuilder().annotation("ProfilerStep#", 0, 9).annotation("ProfilerStep#x", 0, 9).op("a", 3, 4)
    steps = builder.build().steps
    assert not steps.marked


def test_a_mark_without_work_at_the_end_is_incomplete() -> None:
    builder = (
        TraceBuilder()
        .step(1, 0, 100)
        .launch("a", call_us=10, call_duration_us=5, start_us=20, duration_us=30)
        .step(2, 100, 3)
    )
    assert builder.build().steps.complete.tolist() == [True, False]
    assert TraceBuilder().step(1, 0, 9).op("a", 1, 2).step(2, 10, 9).build().steps.complete.tolist() == [True, False]
    assert TraceBuilder().step(1, 0, 9).step(2, 10, 9).build().steps.complete.tolist() == [True, True]


@pytest.mark.parametrize("said", [False, "false"])
def test_a_mark_that_was_open_when_the_recording_stopped_is_incomplete(said: object) -> None:
    marks = [("ProfilerStep#1", 0, True), ("ProfilerStep#2", 100, None), ("ProfilerStep#3", 200, said)]
    builder = TraceBuilder()
    for name, start_us, finished in marks:
        args: dict[str, Any] = {} if finished is None else {"finished": finished}
        builder.host("user_annotation", name, start_us, 100, **args).op("aten::mm", start_us + 10, 20)
    trace = builder.build()
    assert trace.annotations.finished.tolist() == [True, True, False]
    assert trace.steps.complete.tolist() == [True, True, False]


@pytest.mark.parametrize("mark", ["Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad", "perf::forward"])
def test_in_a_training_without_step_marks_the_marked_thread_counts_not_the_busiest(mark: str) -> None:
    builder = (
        TraceBuilder()
        .op("aten::mm", 0, 10, thread=5)
        .annotation(mark, 20, 10, thread=5)
        .op("autograd::engine::evaluate_function: MmBackward0", 0, 500, thread=6)
        .annotation("a range of a user's", 0, 500, thread=6)
    )
    trace = builder.build()
    assert not trace.steps.marked
    assert trace.threads[trace.steps.thread].thread == "5"


def test_in_a_recording_without_any_marks_the_busiest_thread_counts() -> None:
    builder = (
        TraceBuilder()
        .op("aten::mm", 0, 100, thread=5)
        .op("aten::addmm", 10, 90, thread=5)
        .op("aten::mm", 0, 150, thread=6)
    )
    trace = builder.build()
    assert trace.threads[trace.steps.thread].thread == "6"  # what lies inside another operator does not count twice


def test_without_marks_the_operators_and_device_work_are_the_recording() -> None:
    builder = (
        TraceBuilder()
        .python("threading.py(1): run", 0, 1000)
        .op("busy", 100, 200, thread=5)
        .op("idle", 100, 10, thread=6)
        .kernel("k", 350, 50, 3)
        .runtime("cudaDeviceSynchronize", 400, 500, 4)
        .event(ph="i", name="Record Window End", ts=10**15, pid="", tid="", s="g")
    )
    trace = builder.build()
    assert not trace.steps.marked
    assert windows(builder) == [(0, 100_000, 400_000)]
    assert trace.threads[trace.steps.thread].thread == "1000"  # in calls for 500 µs
    assert TraceBuilder().python("f", 3, 4).build().steps.end_ns.tolist() == [7_000]


@pytest.mark.corpus
def test_windows_and_counts_of_real_traces(trace: Trace, row: dict[str, Any]) -> None:
    steps, base = trace.steps, trace.metadata.base_time_ns
    found = [
        [str(number), int(start) - base, int(end) - base]
        for number, start, end, complete in zip(steps.number, steps.start_ns, steps.end_ns, steps.complete, strict=True)
        if complete
    ]
    if row["file"] not in DIFFERENT:
        assert found == row["exact"]["step_windows_ns"]
    kernels = np.flatnonzero(trace.device.kind <= DeviceKind.COLLECTIVE)
    assert len(kernels) == row["kernels"]
    calls = trace.links.device_runtime[kernels]
    assert len(np.unique(calls[calls >= 0])) == row["launches"]
    memsets = np.setdiff1d(trace.links.device_runtime[trace.device.kind == DeviceKind.MEMSET], [*calls, NO_ROW])
    assert trace.links.is_launch.sum() == row["launches"] + len(memsets)
    sets = row["device_sets_ns"]
    if sets:
        assert int(trace.device.duration_ns[kernels].sum()) == sets["kernel_time_sum_ns"]
    assert trace.metadata.rank == row["rank"]
    assert trace.metadata.world_size == row["world_size"]
    assert sorted({device.name for device in trace.metadata.devices if device.name is not None}) in (
        [],
        sorted(set(row["gpu"])),
        ["AMD Radeon Graphics"],
    )
