from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.analysis.core.averaged_steps import averaged_steps
from lightning_perf.analysis.steps.idle import GAP_CLASSES, find_gaps
from tests.support.trace_builder import FETCH, TraceBuilder

SPAN = 60

pieces = st.lists(st.tuples(st.integers(0, SPAN - 1), st.integers(1, 8)), max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.integers(10, SPAN - 10),
    launched=st.lists(
        st.tuples(st.integers(0, SPAN - 10), st.integers(1, 5), st.integers(0, 12), st.integers(1, 10)), max_size=5
    ),
    fetches=pieces,
    syncs=pieces,
    allocs=pieces,
    events=pieces,
    operators=pieces,
)
def test_parts_against_an_instant_by_instant_count(steps, launched, fetches, syncs, allocs, events, operators):
    """Two steps on a grid of 1 µs; every instant is classed on its own."""
    builder = TraceBuilder().step(1, 0, steps).step(2, steps, SPAN - steps)
    active = {name: np.zeros(3 * SPAN, dtype=bool) for name in GAP_CLASSES[:-1]}
    busy = np.zeros(3 * SPAN, dtype=bool)
    for stream, (call, call_length, delay, length) in enumerate(launched):
        start = call + call_length + delay
        builder.launch(
            "k", call_us=call, call_duration_us=call_length, start_us=start, duration_us=length, stream=stream
        )
        active["kernel_launch"][call : call + call_length] = True
        active["kernel_gap"][call + call_length : start] = True
        busy[start : start + length] = True
    for name, found in (
        ("input", fetches), ("runtime_sync", syncs), ("runtime_alloc", allocs), ("runtime_other", events),
        ("host_compute", operators),
    ):  # fmt: skip
        for start, length in found:
            active[name][start : start + length] = True
            if name == "input":
                builder.annotation(FETCH, start, length)
            elif name == "host_compute":
                builder.op("aten::mm", start, length, thread=2000)
            else:
                call = {"runtime_sync": "cudaStreamSynchronize", "runtime_alloc": "cudaMalloc"}
                builder.runtime(call.get(name, "cudaEventRecord"), start, length)
    trace = builder.build()
    expected = dict.fromkeys(GAP_CLASSES, 0)
    averaged = averaged_steps(trace)
    starts, ends = trace.steps.start_ns[averaged] // 1000, trace.steps.end_ns[averaged] // 1000
    for begin, end in zip(starts, ends, strict=True):
        for instant in range(begin, end):
            if not busy[instant]:
                found = next((name for name in GAP_CLASSES[:-1] if active[name][instant]), "host_other")
                expected[found] += 1000
    gaps = find_gaps(trace)
    assert {name: int(part.sum()) for name, part in gaps.parts_ns.items()} == expected
    assert (sum(gaps.parts_ns.values()) == gaps.end_ns - gaps.start_ns).all()
    assert (gaps.end_ns > gaps.start_ns).all()
    assert (gaps.start_ns[1:] >= gaps.end_ns[:-1]).all()
