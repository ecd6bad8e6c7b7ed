from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.trace.columns import NO_ROW, Spans
from lightning_perf.trace.indexing import enclosing_rows, parent_rows
from lightning_perf.trace.trace import is_launch_name
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


def test_one_graph_launch_starts_many_kernels() -> None:
    builder = TraceBuilder().runtime("cudaGraphLaunch", 0, 5, 9)
    for number in range(4):
        builder.kernel(f"k{number}", 10 + 10 * number, 5, 9)
    links = builder.build().links
    assert links.device_runtime.tolist() == [0, 0, 0, 0]
    assert links.is_launch.tolist() == [True]


def test_of_repeated_correlations_the_nearest_call_before_counts() -> None:
    trace = (
        TraceBuilder()
        .runtime("cudaLaunchKernel", 0, 1, 5)
        .kernel("a", 10, 1, 5)
        .runtime("cudaLaunchKernel", 100, 1, 5)
        .kernel("b", 110, 1, 5)
        .build()
    )
    assert trace.links.device_runtime.tolist() == [0, 1]


def test_a_skewed_clock_still_links() -> None:
    trace = TraceBuilder().runtime("cudaLaunchKernel", 10, 5, 5).kernel("a", 9.5, 1, 5).build()
    assert trace.links.device_runtime.tolist() == [0]


def test_without_a_correlation_nothing_links() -> None:
    trace = TraceBuilder().runtime("cudaLaunchKernel", 0, 5).kernel("a", 10, 1).kernel("b", 20, 1, 7).build()
    assert trace.links.device_runtime.tolist() == [NO_ROW, NO_ROW]
    assert trace.links.device_operator.tolist() == [NO_ROW, NO_ROW]
    assert trace.links.is_launch.tolist() == [True]  # by its name: its work was not recorded


@pytest.mark.parametrize(
    ("name", "launches"),
    [
        ("cudaLaunchKernel", True),
        ("cudaLaunchKernelExC", True),
        ("cuLaunchKernelEx", True),
        ("cudaGraphLaunch", True),
        ("hipLaunchKernel", True),
        ("hipExtModuleLaunchKernel", True),
        ("urEnqueueKernelLaunch", True),
        ("zeCommandListAppendLaunchKernel", True),
        ("urEnqueueUSMMemcpy", False),
        ("cudaLaunchHostFunc", False),
        ("cudaMemcpyAsync", False),
        ("cudaMemsetAsync", False),
        ("cudaStreamSynchronize", False),
        ("cudaMalloc", False),
    ],
)
def test_launch_names(name: str, launches: bool) -> None:
    assert is_launch_name(name) is launches


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
