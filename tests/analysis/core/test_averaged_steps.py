import gc
import weakref

import numpy as np
from msgspec.structs import replace

from lightning_perf.analysis.intervals import averaged_steps, cached_per_trace, in_averaged_steps
from lightning_perf.trace.trace import Trace
from tests.support.trace_builder import TraceBuilder


def steps(*complete):
    builder = TraceBuilder()
    for n in range(len(complete)):
        builder.step(n, n * 100, 80)
    trace = builder.build()
    trace.__dict__["steps"] = replace(trace.steps, complete=np.array(complete))
    return trace


def test_incomplete_steps_are_left_out():
    trace = steps(True, True, False)
    assert averaged_steps(trace).tolist() == [True, True, False]
    times = np.array([-1, 0, 79_999, 80_000, 100_000, 250_000])
    assert in_averaged_steps(trace, times).tolist() == [False, True, True, False, True, False]


def test_without_a_complete_step_all_count():
    assert averaged_steps(steps(False, False)).tolist() == [True, True]


def test_once_for_each_recording_and_not_for_longer_than_that() -> None:
    calls: list[int] = []

    @cached_per_trace
    def operators(trace: Trace) -> list[int]:
        calls.append(len(trace.operators))
        return calls[-1:]

    one, two = (TraceBuilder().op("aten::mm", 0, 1).build() for _ in range(2))
    assert operators(one) is operators(one)
    assert operators(two) is not operators(one)
    assert calls == [1, 1]
    watched = weakref.ref(one)
    del one
    gc.collect()
    assert watched() is None
