from __future__ import annotations

import random

import msgspec
import pytest

from lightning_perf.analysis.ranks.distributed import CollectiveSkew, Distributed, distributed
from lightning_perf.analysis.ranks.rank_times import CollectiveCall, RankTimes, rank_times
from lightning_perf.analysis.steps.breakdown import breakdown
from tests.support.trace_builder import TraceBuilder

STEPS = 5


def run(compute_us: dict[int, int], *, clock_us: dict[int, int] | None = None, world_size: int | None = None):
    """Ranks that compute for different times, then meet in an all-reduce that takes 10 µs once the last has come."""
    slowest = max(compute_us.values())
    ranks = []
    for rank, compute in compute_us.items():
        builder = TraceBuilder().rank(rank, world_size or len(compute_us))
        for n in range(STEPS):
            begin = (clock_us or {}).get(rank, 0) + n * (slowest + 30)
            builder.step(n, begin, slowest + 30)
            builder.launch("gemm", call_us=begin, call_duration_us=5, start_us=begin + 10, duration_us=compute)
            builder.launch(
                "ncclAllReduce", call_us=begin + 5, call_duration_us=2, start_us=begin + 10 + compute,
                duration_us=slowest - compute + 10,
            )  # fmt: skip
        trace = builder.build()
        ranks.append(rank_times(trace, breakdown(trace), rank))
    return ranks


@pytest.mark.parametrize("clock_us", [None, {0: 0, 1: 900_000, 2: 30}], ids=["one clock", "clocks apart"])
def test_straggler_is_named_whatever_the_clocks(clock_us):
    ranks = run({0: 100, 1: 160, 2: 120}, clock_us=clock_us)
    random.Random(3).shuffle(ranks)
    value = distributed(ranks)
    assert value is not None
    assert value.clocks_comparable is (clock_us is None)
    assert value.matched_collectives == STEPS
    assert [(share.rank, share.wait_ns, share.work_ns, share.last_arrivals) for share in value.ranks] == [
        (0, 60_000, 130_000, 0),
        (1, 0, 190_000, STEPS),
        (2, 40_000, 150_000, 0),
    ]
    assert value.skew == (CollectiveSkew("ncclAllReduce", "", STEPS, 60_000, 60_000, 1),)
    assert value.straggler is not None
    assert (value.straggler.rank, value.straggler.category, value.straggler.excess_ns) == (1, "device_compute", 50_000)
    assert value.straggler.last_arrival_share == 1
    mean = (130_000 + 190_000 + 150_000) / 3
    assert value.imbalance == pytest.approx(190_000 / mean - 1)
    assert value.balanced_saving_ns == pytest.approx(190_000 - mean)
    assert msgspec.json.decode(msgspec.json.encode(value), type=Distributed) == value


def test_equal_ranks_have_no_straggler():
    value = distributed(run({0: 100, 1: 100}))
    assert value is not None
    assert (value.straggler, value.imbalance, value.ranks[0].last_arrivals) == (None, 0, 0)


def test_missing_and_duplicate_ranks_are_said():
    ranks = run({0: 100, 3: 120}, world_size=4)
    value = distributed([*ranks, ranks[0]])
    assert value is not None
    assert (value.world_size, value.missing_ranks, value.duplicate_ranks) == (4, (1, 2), (0,))
    assert [share.rank for share in value.ranks] == [0, 3]
    alone = distributed(ranks[:1])
    assert alone is not None
    assert (alone.missing_ranks, alone.clocks_comparable, alone.straggler) == ((1, 2, 3), None, None)


def test_one_rank_of_one_gives_nothing():
    assert distributed(run({0: 100})) is None
    assert distributed([]) is None


def test_ranks_without_collectives_are_compared_by_step_time():
    ranks = [RankTimes(r, 2, None, 3, 100.0 + 20 * r, (("input", 10.0 + 20 * r),), (), False) for r in range(2)]
    value = distributed(ranks)
    assert value is not None
    assert (value.matched_collectives, value.clocks_comparable) == (0, None)
    assert value.straggler is not None
    assert (value.straggler.rank, value.straggler.category, value.straggler.last_arrival_share) == (1, "input", None)
    assert value.ranks[0].wait_ns is None


def test_straggler_of_ranks_on_the_host():
    ranks = []
    for rank, compute in ((0, 100), (1, 160)):
        builder = TraceBuilder().rank(rank, 2, backend="gloo")
        for n in range(STEPS):
            builder.step(n, 200 * n, 200).op("aten::mm", 200 * n, compute)
            builder.annotation("gloo:all_reduce", 200 * n + compute, 180 - compute, thread=7)
            builder.op("aten::add_", 200 * n + 180, 20)
        trace = builder.build()
        ranks.append(rank_times(trace, breakdown(trace), rank))
    value = distributed(ranks)
    assert value is not None
    assert value.straggler is not None
    assert (value.straggler.rank, value.straggler.category, value.straggler.excess_ns) == (1, "host_compute", 60_000)
    assert [(share.wait_ns, share.work_ns) for share in value.ranks] == [(60_000, 140_000), (0, 200_000)]


def test_waiting_on_the_host_does_not_hide_why_a_rank_is_late():
    def rank(number: int, python_ns: float, wait_ns: int) -> RankTimes:
        call = CollectiveCall(0, "gloo:all_reduce", "", 100 + int(python_ns), wait_ns + 5)
        categories = (("host_compute", 100.0), ("host_other", python_ns + wait_ns))
        return RankTimes(number, 2, "h", 1, sum(time for _, time in categories), categories, (call,), False)

    value = distributed([rank(0, 20.0, 70), rank(1, 90.0, 0)])
    assert value is not None
    assert value.straggler is not None
    assert (value.straggler.rank, value.straggler.category, value.straggler.excess_ns) == (1, "host_other", 70)


def test_collectives_are_matched_by_step_and_order():
    def rank(number: int, *calls: tuple[int, int, int]) -> RankTimes:
        found = tuple(CollectiveCall(step, "allreduce", "0", start, length) for step, start, length in calls)
        return RankTimes(number, 2, "h", 2, 1000.0, (("communication", 500.0),), found, False)

    # Rank 1 was recorded from its second step on.
    value = distributed([rank(0, (1, 0, 10), (2, 100, 10), (2, 200, 30)), rank(1, (2, 95, 15), (2, 215, 15))])
    assert value is not None
    assert value.matched_collectives == 2
    assert value.skew == (CollectiveSkew("allreduce", "0", 2, 10, 15, 0),)
    assert [share.wait_ns for share in value.ranks] == [7.5, 2.5]
