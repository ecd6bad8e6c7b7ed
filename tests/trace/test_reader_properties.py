"""What must not matter: the order of events in the file, the clock's origin, and how a recording is split."""

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.trace.concatenate import concatenate
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.trace import Trace
from tests.support.trace_builder import TraceBuilder
from tests.trace.test_against_naive_reader import assert_same

# Every event is a moment and a length in nanoseconds; distinct begins, so that the order of ties cannot matter.
MOMENTS = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**5), st.integers(0, 4), st.integers(1, 2)),
    min_size=1,
    max_size=25,
    unique_by=lambda moment: moment[0],
)


def built(moments: list[tuple[int, int, int, int]], shift_us: int = 0) -> TraceBuilder:
    builder = TraceBuilder()
    for number, (start_ns, length_ns, kind, thread) in enumerate(moments, 1):
        start, length = shift_us + start_ns / 1000, length_ns / 1000
        match kind:
            case 0:
                builder.step(number, start, length, thread=thread)
            case 1:
                builder.op(f"op{number}", start, length, thread=thread, types=["float"], dims=[[number]])
            case 2:
                builder.runtime("cudaLaunchKernel", start, length, number, thread=thread)
            case 3:
                builder.kernel(f"kernel{number}", start, length, max(number - 1, 1))
            case _:
                builder.python(f"f{number}", start, length, thread=thread)
    return builder


def reordered(builder: TraceBuilder, seed: int) -> TraceBuilder:
    other = TraceBuilder()
    other.events = list(builder.events)
    random.Random(seed).shuffle(other.events)
    return other


def derived(trace: Trace) -> list[Any]:
    steps, links = trace.steps, trace.links
    return [
        steps.number, steps.start_ns, steps.end_ns, steps.complete,
        links.device_runtime, links.runtime_operator, links.operator_parent, links.is_launch,
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(MOMENTS, st.integers(0, 99))
def test_the_order_of_events_does_not_matter(moments: list[tuple[int, int, int, int]], seed: int) -> None:
    trace, other = built(moments).build(), reordered(built(moments), seed).build()
    assert_same(trace, other)
    for one, two in zip(derived(trace), derived(other), strict=True):
        np.testing.assert_array_equal(one, two)


@settings(max_examples=60, deadline=None)
@given(MOMENTS, st.integers(1, 10**9))
def test_the_origin_of_the_clock_does_not_matter(moments: list[tuple[int, int, int, int]], shift_us: int) -> None:
    trace, other = built(moments).build(), built(moments, shift_us).build()
    for table, moved in zip(trace.tables(), other.tables(), strict=True):
        np.testing.assert_array_equal(table.start_ns + shift_us * 1000, moved.start_ns)
        np.testing.assert_array_equal(table.end_ns + shift_us * 1000, moved.end_ns)
    np.testing.assert_array_equal(trace.steps.start_ns + shift_us * 1000, other.steps.start_ns)
    np.testing.assert_array_equal(trace.steps.end_ns + shift_us * 1000, other.steps.end_ns)


@settings(max_examples=60, deadline=None)
@given(MOMENTS.filter(lambda moments: len(moments) > 1), st.data())
def test_splitting_a_file_does_not_matter(moments: list[tuple[int, int, int, int]], data: st.DataObject) -> None:
    whole = built(moments)
    cut = data.draw(st.integers(1, len(whole.events) - 1))
    parts = [TraceBuilder(), TraceBuilder()]
    parts[0].events, parts[1].events = whole.events[:cut], whole.events[cut:]
    trace, joined = whole.build(), concatenate([part.build() for part in parts])
    assert_same(trace, joined)
    for one, two in zip(derived(trace), derived(joined), strict=True):
        np.testing.assert_array_equal(one, two)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2**42), min_size=1, max_size=20), st.sampled_from([0, 1_700_000_000_000_000]))
def test_times_are_exact_to_the_nanosecond(nanoseconds: list[int], epoch_us: int) -> None:
    # As text, because a float of Python could not hold them.
    events = ", ".join(
        f'{{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "dur": 0.001, '
        f'"ts": {epoch_us + ns // 1000}.{ns % 1000:03d}}}'
        for ns in nanoseconds
    )
    trace = read_text(f'{{"traceEvents": [{events}]}}')
    assert trace.operators.start_ns.tolist() == sorted(epoch_us * 1000 + ns for ns in nanoseconds)
    assert trace.operators.duration_ns.tolist() == [1] * len(nanoseconds)


def read_text(text: str) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(text)
        return read_trace(path)
