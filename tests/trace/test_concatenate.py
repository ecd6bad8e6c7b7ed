from typing import Any

import numpy as np
import pytest

from lightning_perf.analysis.steps.breakdown import breakdown
from lightning_perf.trace.concatenate import concatenate
from tests.support.trace_builder import TraceBuilder


def window(first_step: int, at_us: int, kernel: str) -> TraceBuilder:
    # Both windows count their correlations from the same number, as two processes do.
    return (
        TraceBuilder()
        .rank(3, 8)
        .step(first_step, at_us, 100)
        .op("aten::mm", at_us + 5, 30, types=["float"], dims=[[first_step, 4]], sequence=first_step)
        .launch(kernel, call_us=at_us + 10, call_duration_us=5, start_us=at_us + 20, duration_us=40)
        .memory(at_us + 6, 1024)
    )


def test_windows_become_one_trace_in_time_order() -> None:
    early, late = window(1, 0, "first_kernel").build(), window(9, 5000, "second_kernel").build()
    both = concatenate([late, early])
    assert both.sources == early.sources + late.sources
    assert both.steps.number.tolist() == [1, 9]
    assert [both.names[code] for code in both.device.name] == ["first_kernel", "second_kernel"]
    assert [both.shape_lists[code] for code in both.operators.input_shapes] == ["[[1,4]]", "[[9,4]]"]
    assert both.memory.time_ns.tolist() == [6_000, 5_006_000]
    assert both.metadata.rank == 3
    assert len(set(both.names)) == len(both.names)


def test_equal_correlations_of_two_files_do_not_link() -> None:
    both = concatenate([window(1, 0, "a").build(), window(9, 5000, "b").build()])
    assert len(np.unique(both.runtime.correlation)) == 1
    assert both.links.device_runtime.tolist() == [0, 1]
    assert both.links.device_operator.tolist() == [0, 1]


def test_the_breakdown_of_both_is_the_sum_of_each() -> None:
    traces = [window(1, 0, "a").build(), window(9, 5000, "b").build()]
    both = breakdown(concatenate(traces))
    for row in both.categories:
        assert row.per_step_ns is not None
        each = [breakdown(trace).category(row.name).per_step_ns for trace in traces]
        assert row.per_step_ns == (each[0] or ()) + (each[1] or ())


def test_collectives_keep_their_device_row() -> None:
    def collective(at_us: int, elements: int) -> TraceBuilder:
        sent: dict[str, Any] = {"Collective name": "allreduce", "In msg nelems": elements, "dtype": "Float"}
        return TraceBuilder().kernel("gemm", at_us, 10, 1).kernel("ncclDevKernel_AllReduce", at_us + 20, 10, 2, **sent)

    both = concatenate([collective(0, 11).build(), collective(1000, 22).build()])
    assert both.collectives.device_row.tolist() == [1, 3]
    assert both.collectives.in_elements.tolist() == [11, 22]


def test_one_trace_stays_itself() -> None:
    trace = window(1, 0, "a").build()
    assert concatenate([trace]) is trace


def test_a_launch_and_its_kernel_in_two_parts_of_a_file_link() -> None:
    whole = TraceBuilder().step(1, 0, 100).launch("k", call_us=10, call_duration_us=5, start_us=150, duration_us=9)
    parts = [TraceBuilder(), TraceBuilder()]
    for event in whole.events:
        parts[event["ts"] >= 100].event(**event)
    both = concatenate([part.build() for part in parts])
    assert both.steps.end_ns.tolist() == whole.build().steps.end_ns.tolist() == [159_000]


def test_nothing_to_join() -> None:
    with pytest.raises(ValueError, match="no trace"):
        concatenate([])
