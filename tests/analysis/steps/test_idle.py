import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.analysis.intervals import averaged_steps
from lightning_perf.analysis.steps.breakdown import breakdown
from lightning_perf.analysis.steps.idle import GAP_CLASSES, find_gaps, idle
from tests.support.known import known
from tests.support.trace_builder import FETCH, TraceBuilder


def test_every_gap_gets_its_cause():
    trace = (
        TraceBuilder()
        .step(1, 0, 1000)
        .annotation(FETCH, 0, 300)
        .annotation("perf_like_user_range", 500, 400)
        .op("aten::mm", 300, 20)
        .launch("first", call_us=310, call_duration_us=5, start_us=330, duration_us=70)  # 15 µs in the queue
        .runtime("cudaStreamSynchronize", 390, 60)  # from 400 the device is idle
        .op("aten::item", 385, 70)
        .python("model.py(12): log_everything", 520, 300)
        .launch("second", call_us=880, call_duration_us=10, start_us=895, duration_us=105)
        .build()
    )
    value = known(idle(trace))
    assert (value.steps, value.share, value.idle_ns, value.gaps) == (1, 0.825, 825_000, 2)
    assert {row.name: row.total_ns for row in value.classes if row.total_ns} == {
        "host_other": 425_000,
        "input": 300_000,
        "runtime_sync": 50_000,
        "kernel_gap": 20_000,
        "host_compute": 15_000,
        "kernel_launch": 15_000,
    }
    later, first = value.longest
    assert (later.length_ns, later.start_ns, later.cause) == (495_000, 400_000, "host_other")
    assert (later.after, later.step) == ("second", 1)
    assert (later.annotation, later.python) == ("perf_like_user_range", "model.py(12): log_everything")
    assert later.operator == "aten::item"
    assert (first.cause, first.after, first.annotation) == ("input", "first", FETCH)
    assert first.length_ns == 330_000


def test_gap_that_the_step_ends_has_nothing_after_it():
    trace = TraceBuilder().step(1, 0, 100).step(2, 100, 100).kernel("a", 10, 20, 1).kernel("b", 120, 80, 2).build()
    value = known(idle(trace))
    assert [(gap.step, gap.length_ns, gap.after) for gap in value.longest] == [
        (1, 70_000, None),
        (2, 20_000, "b"),
        (1, 10_000, "a"),
    ]


def test_queued_work_that_waits_long_waits_for_something_else():
    trace = TraceBuilder().launch("a", call_us=0, call_duration_us=5, start_us=8, duration_us=50)
    trace.launch("b", call_us=5, call_duration_us=5, start_us=60, duration_us=50)
    value = known(idle(trace.launch("c", call_us=10, call_duration_us=5, start_us=1000, duration_us=50).build()))
    long, short = value.longest
    assert (long.cause, short.cause) == ("kernel_gap", "kernel_gap")
    assert "another stream" in long.remedy
    assert "queued in time" in short.remedy


def test_work_on_any_stream_keeps_the_device_busy():
    value = known(idle(TraceBuilder().step(1, 0, 100).kernel("a", 0, 60, 1).kernel("b", 50, 50, 2, stream=9).build()))
    assert (value.idle_ns, value.gaps, value.median_gap_ns, value.longest) == (0, 0, None, ())


@pytest.mark.corpus
def test_idle_of_real_traces_is_what_the_breakdown_leaves_to_the_host(trace, row):
    value = idle(trace)
    if value is None:
        assert len(trace.device) == 0
        return
    rows = breakdown(trace)
    host = ("input", "kernel_launch", "runtime", "host_compute", "host_other")
    averaged = averaged_steps(trace)
    left = sum(int(np.array(rows.category(name).per_step_ns)[averaged].sum()) for name in host)
    if not trace.steps.marked:
        assert rows.steps[0].wall_ns - value.idle_ns == row["device_sets_ns"]["busy_ns"]
    assert value.idle_ns == left == sum(part.total_ns for part in value.classes)
    assert sum(part.gaps for part in value.classes) == value.gaps


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
