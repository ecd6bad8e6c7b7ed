"""The timeline of hand-made recordings, exact sums on real ones, and bins against a second implementation."""

import itertools
import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from lightning_perf.analysis.model import timeline as timeline_module
from lightning_perf.analysis.model.timeline import (
    TOP_CATEGORIES,
    Lane,
    cut_steps,
    timeline,
)
from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.analysis.steps.breakdown import breakdown, category_times
from lightning_perf.trace.concatenate import concatenate
from lightning_perf.trace.trace import Trace
from tests.support.known import known
from tests.support.packed_bins import unpack
from tests.support.trace_builder import FETCH, MAIN, TraceBuilder


def dominant(lane: Lane | None) -> list[str | None]:
    """The name with the most time in each bin."""
    assert lane is not None
    return [lane.names[parts[0][0]] if parts else None for parts in unpack(lane.data)]


def one_step() -> TraceBuilder:
    """A step of 400 µs: a bin per µs."""
    return (
        TraceBuilder()
        .step(1, 0, 400)
        .annotation(FETCH, 0, 100)
        .annotation("perf::fetch", 0, 100)
        .annotation("perf::forward", 100, 100)
        .annotation("perf::backward", 200, 150)
        .python("nn.Module: Net_0", 100, 100)
        .python("nn.Module: Linear_0", 120, 40)
        .op("aten::linear", 110, 60)
        .op("aten::addmm", 120, 30)
        .launch("gemm", call_us=125, call_duration_us=5, start_us=140, duration_us=200)
    )


def test_each_bin_names_the_part_with_the_most_time() -> None:
    found = known(timeline(one_step().build()))
    assert found.bins == 400
    categories = dominant(found.categories)
    assert categories[:100] == ["input"] * 100
    assert categories[100:110] == ["host_other"] * 10
    assert categories[110:125] == ["host_compute"] * 15
    assert categories[125:130] == ["kernel_launch"] * 5
    assert categories[140:340] == ["device_compute"] * 200
    assert categories[340:] == ["host_other"] * 60
    assert dominant(found.phases) == ["fetch"] * 100 + ["forward"] * 100 + ["backward"] * 150 + ["other"] * 50
    assert dominant(found.kernels) == [None] * 140 + ["gemm"] * 200 + [None] * 60
    operators = dominant(found.operators)
    assert operators[109:121] == [None, *["aten::linear"] * 10, "aten::addmm"]
    assert operators[149:151] == ["aten::addmm", "aten::linear"]
    modules = dominant(found.modules)
    assert (modules[99], modules[100], modules[120], modules[160]) == (None, "Net_0", "Linear_0", "Net_0")
    idle = dominant(found.idle)
    assert idle[:100] == ["input"] * 100
    assert idle[130:140] == ["kernel_gap"] * 10
    assert idle[140:340] == [None] * 200


def test_many_steps_and_ranks_have_fewer_bins() -> None:
    builder = TraceBuilder().rank(0, 480)
    for n in range(100):
        builder.step(n, 100 * n, 100)
    found = known(timeline(builder.build()))
    assert found.bins == 2
    assert len(unpack(found.categories.data)) == 200


def test_a_recording_without_a_device_has_no_lane_of_the_device() -> None:
    found = known(timeline(TraceBuilder().step(1, 0, 10).op("aten::mm", 2, 3).build()))
    assert (found.idle, found.kernels, found.modules) == (None, None, None)


def test_more_names_than_a_byte_can_number_keep_the_longest() -> None:
    builder = TraceBuilder().step(1, 0, 4000)
    for n in range(400):
        builder.kernel(f"k{n}", 10 * n, 1 + n / 100, n + 1)
    found = known(timeline(builder.build()))
    assert found.kernels is not None
    assert set(found.kernels.names) == {f"k{n}" for n in range(145, 400)}


def test_clocks_of_joined_files_keep_the_times_of_each_file() -> None:
    def window(start_us: int, base_ns: int) -> Any:
        return TraceBuilder(baseTimeNanoseconds=base_ns).step(1, start_us, 10).build()

    joined = concatenate([window(7, 5_000_000), window(3, 0)])
    clocks = analyze_rank(joined).clocks
    assert [(clock.start_ns, clock.file_ns, clock.clock_ns) for clock in clocks] == [
        (0, 3_000, 3_000),
        (5_004_000, 7_000, 5_007_000),
    ]


@pytest.mark.corpus
def test_bins_sum_to_the_breakdown_to_the_nanosecond(trace: Trace) -> None:
    steps = trace.steps
    bins = cut_steps(steps.start_ns, steps.end_ns, 400)
    spans = category_times(trace, bins.start_ns, bins.end_ns)
    times = [spans[name] for name in TOP_CATEGORIES]
    assert (np.sum(times, axis=0) == bins.length_ns).all()
    found = breakdown(trace)
    for name, per_bin in zip(TOP_CATEGORIES, times, strict=True):
        per_step = found.category(name).per_step_ns
        assert tuple(per_bin.reshape(-1, 400).sum(axis=1).tolist()) == (per_step or (0,) * len(found.steps))
    made = known(timeline(trace))
    filled = cut_steps(steps.start_ns, steps.end_ns, made.bins).length_ns > 0
    for lane in (made.categories, made.phases):
        shares = [sum(share for _, share in parts) for parts in unpack(lane.data)]
        assert shares == np.where(filled, 255, 0).tolist()


def nested(rng: random.Random, end: int) -> list[tuple[int, int, str]]:
    """Operators of one thread as (start, end, name), each inside of those before it that have not ended."""
    found: list[tuple[int, int, str]] = []

    def nest(start: int, end: int, depth: int) -> None:
        at = start
        while at < end and depth < 5:
            to = min(end, at + rng.randrange(1, 200))
            if rng.random() < 0.7:
                found.append((at, to, f"{rng.choice('abcdef')}{depth}"))
                nest(at, to, depth + 1)
            at = to + rng.randrange(0, 20)

    nest(rng.randrange(50), end, 0)
    return found


def longest(parts: dict[str, set[int]], length: int) -> list[tuple[str, int]]:
    """Return the three names with the most nanoseconds and their shares in 255ths; ties ascend by name."""
    ranked = sorted(parts.items(), key=lambda part: (-len(part[1]), part[0]))[:3]
    shares = [(name, (2 * 255 * len(times) + length) // (2 * length)) for name, times in ranked]
    return [(name, share) for name, share in shares if share]


@pytest.mark.parametrize("seed", range(10))
def test_lanes_equal_a_count_of_nanoseconds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "ROWS_AT_ONCE", [1, 9, 20, 1000][seed % 4])
    rng = random.Random(seed)
    ends = (0, 997, 2000)
    builder = TraceBuilder().step(1, 0, 0.997).step(2, 0.997, 1.003)
    threads = {thread: nested(rng, 2000) for thread in (MAIN, 2000)}
    for thread, calls in threads.items():
        for start, end, name in calls:
            builder.op(name, start / 1000, (end - start) / 1000, thread=thread)
    kernels = [(rng.randrange(1900), rng.choice([0, 1, 5, 90]), rng.choice("xyz")) for _ in range(40)]
    for start, length, name in kernels:
        builder.kernel(name, start / 1000, length / 1000)
    found = known(timeline(builder.build()))
    shown = {
        name: [[(lane.names[code], share) for code, share in parts] for parts in unpack(lane.data)]
        for name, lane in (("operators", known(found.operators)), ("kernels", known(found.kernels)))
    }
    edges = [
        begin + (end - begin) * number // 400 for begin, end in itertools.pairwise(ends) for number in range(400)
    ] + [ends[-1]]
    for place, (begin, end) in enumerate(itertools.pairwise(edges)):
        operators: defaultdict[str, set[int]] = defaultdict(set)
        running: defaultdict[str, set[int]] = defaultdict(set)
        for t in range(begin, end):
            for calls in threads.values():
                around = [name for start, stop, name in calls if start <= t < stop]
                if around:  # the innermost comes last
                    operators[around[-1]].add(t)
            for start, length, name in kernels:
                if start <= t < start + length:
                    running[name].add(t)
        assert shown["operators"][place] == longest(operators, end - begin), place
        assert shown["kernels"][place] == longest(running, end - begin), place
