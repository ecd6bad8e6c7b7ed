from __future__ import annotations

import gc
import weakref

from lightning_perf.analysis.core.averaged_steps import cached_per_trace
from lightning_perf.trace.trace import Trace
from tests.support.trace_builder import TraceBuilder


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
