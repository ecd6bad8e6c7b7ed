import gzip
import json
import random
from collections import Counter
from typing import Any

import pytest

from lightning_perf.analysis.ranks.communication import communication
from lightning_perf.analysis.ranks.distributed import (
    CollectiveCall,
    CollectiveSkew,
    RankTimes,
    collective_waits,
    distributed,
    link_use,
    rank_times,
)
from lightning_perf.analysis.steps.breakdown import breakdown
from lightning_perf.trace.reader import read_trace
from tests.support.known import known
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
    value = known(distributed(ranks))
    assert value.clocks_comparable is (clock_us is None)
    assert value.matched_collectives == STEPS
    assert [(share.rank, share.wait_ns, share.work_ns, share.last_arrivals) for share in value.ranks] == [
        (0, 60_000, 130_000, 0),
        (1, 0, 190_000, STEPS),
        (2, 40_000, 150_000, 0),
    ]
    assert value.skew == (CollectiveSkew("ncclAllReduce", "", STEPS, 60_000, 60_000, 1),)
    assert (value.straggler.rank, value.straggler.category, value.straggler.excess_ns) == (1, "device_compute", 50_000)
    assert value.straggler.last_arrival_share == 1
    mean = (130_000 + 190_000 + 150_000) / 3
    assert value.imbalance == pytest.approx(190_000 / mean - 1)
    assert value.balanced_saving_ns == pytest.approx(190_000 - mean)


def test_equal_ranks_have_no_straggler():
    value = known(distributed(run({0: 100, 1: 100})))
    assert (value.straggler, value.imbalance, value.ranks[0].last_arrivals) == (None, 0, 0)


def test_missing_ranks_are_said_and_of_duplicates_the_first_counts():
    ranks = run({0: 100, 3: 120}, world_size=4)
    value = known(distributed([*ranks, ranks[0]]))
    assert (value.world_size, value.missing_ranks) == (4, (1, 2))
    assert [share.rank for share in value.ranks] == [0, 3]
    alone = known(distributed(ranks[:1]))
    assert (alone.missing_ranks, alone.clocks_comparable, alone.straggler) == ((1, 2, 3), None, None)


def test_one_rank_of_one_gives_nothing():
    assert distributed(run({0: 100})) is None
    assert distributed([]) is None


def test_ranks_without_collectives_are_compared_by_step_time():
    ranks = [RankTimes(r, 2, None, 3, 100.0 + 20 * r, (("input", 10.0 + 20 * r),), ()) for r in range(2)]
    value = known(distributed(ranks))
    assert (value.matched_collectives, value.clocks_comparable) == (0, None)
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
    value = known(distributed(ranks))
    assert (value.straggler.rank, value.straggler.category, value.straggler.excess_ns) == (1, "host_compute", 60_000)
    assert [(share.wait_ns, share.work_ns) for share in value.ranks] == [(60_000, 140_000), (0, 200_000)]


def test_waiting_on_the_host_does_not_hide_why_a_rank_is_late():
    def rank(number: int, python_ns: float, wait_ns: int) -> RankTimes:
        call = CollectiveCall(0, "gloo:all_reduce", "", 100 + int(python_ns), wait_ns + 5)
        categories = (("host_compute", 100.0), ("host_other", python_ns + wait_ns))
        return RankTimes(number, 2, "h", 1, sum(time for _, time in categories), categories, (call,))

    value = known(distributed([rank(0, 20.0, 70), rank(1, 90.0, 0)]))
    assert (value.straggler.rank, value.straggler.category, value.straggler.excess_ns) == (1, "host_other", 70)


def test_collectives_are_matched_by_step_and_order():
    def rank(number: int, *calls: tuple[int, int, int]) -> RankTimes:
        found = tuple(CollectiveCall(step, "allreduce", "0", start, length) for step, start, length in calls)
        return RankTimes(number, 2, "h", 2, 1000.0, (("communication", 500.0),), found)

    # Rank 1 was recorded from its second step on.
    value = known(distributed([rank(0, (1, 0, 10), (2, 100, 10), (2, 200, 30)), rank(1, (2, 95, 15), (2, 215, 15))]))
    assert value.matched_collectives == 2
    assert value.skew == (CollectiveSkew("allreduce", "0", 2, 10, 15, 0),)
    assert [share.wait_ns for share in value.ranks] == [7.5, 2.5]


KERNELS = ("SendRecv",) * 4 + ("AllReduce", "SendRecv", "AllReduce", "AllReduce")

# A real training on eight GPUs. The figures are those of ``et_replay/tests/inputs/dlrm_kineto.tar.gz`` in
# https://github.com/facebookresearch/param (commit 1e115ff, MIT): the recommendation model DLRM on eight V100 over
# NCCL, one recorded step. docs/corpus.md says how to get the recording itself.
# Of each rank in µs: begin and length of the step, exposed communication, host operators; begin and length of each
# collective.
RECORDED = {
    0: (6674, 14455, 5537, 3332, [(9795, 2146), (13686, 1032), (14943, 176), (15120, 131), (16304, 246), (17789, 514),
        (18305, 601), (19384, 952)]),
    1: (2522, 18584, 11056, 3305, [(4306, 7635), (13693, 1025), (14949, 169), (15120, 132), (16240, 307), (17758, 545),
        (18304, 601), (19411, 922)]),
    2: (8092, 13017, 3217, 3718, [(11422, 518), (14201, 517), (14946, 173), (15120, 131), (16347, 198), (17834, 468),
        (18333, 572), (19423, 915)]),
    3: (2502, 18711, 9450, 3643, [(5808, 6132), (13695, 1021), (14944, 174), (15119, 133), (16255, 291), (17759, 542),
        (18303, 602), (19452, 879)]),
    4: (4049, 17979, 6550, 4993, [(7058, 4882), (13609, 1108), (14948, 170), (15120, 132), (16454, 95), (18240, 61),
        (18838, 70), (20269, 69)]),
    5: (4195, 17797, 6211, 5092, [(7261, 4679), (13657, 1060), (14943, 175), (15119, 132), (16451, 96), (18292, 10),
        (18887, 20), (20255, 79)]),
    6: (8080, 13091, 3289, 3716, [(11425, 514), (14198, 520), (14943, 175), (15119, 131), (16336, 213), (17817, 483),
        (18308, 602), (19418, 920)]),
    7: (8718, 12509, 1580, 4249, [(11930, 10), (14710, 8), (15111, 7), (15244, 7), (16463, 86), (17944, 357),
        (18439, 468), (19531, 803)]),
}  # fmt: skip


def recorded(*, clock_ns: int = 0) -> list[RankTimes]:
    """The eight ranks, each rank's clock that much ahead of the one before."""
    ranks = []
    for rank, (begin, length, exposed, host, collectives) in RECORDED.items():
        ahead = rank * clock_ns
        calls = tuple(
            CollectiveCall(10, name, "", start * 1000 + ahead, duration * 1000)
            for name, (start, duration) in zip(KERNELS, collectives, strict=True)
        )
        categories = (("communication", exposed * 1e3), ("host_compute", host * 1e3))
        begin_ns = begin * 1000 + ahead
        ranks.append(RankTimes(rank, 8, None, 1, length * 1e3, categories, calls, 10, begin_ns))
    random.Random(0).shuffle(ranks)
    return ranks


def test_waits_of_a_real_training_by_brute_force():
    waits = collective_waits({times.rank: times for times in recorded()})
    wait, awaited, last = Counter(), Counter(), Counter()
    for n in range(len(KERNELS)):
        starts = {rank: collectives[n][0] for rank, (*_, collectives) in RECORDED.items()}
        for rank, start in starts.items():
            for other, begun in starts.items():
                if all(begun >= each for each in starts.values()):
                    wait[rank] += (begun - start) * 1000
                    awaited[other] += (begun - start) * 1000
                    last[other] += rank == other
    assert (waits.matched, waits.clocks_comparable) == (8, True)
    assert waits.wait_ns == {rank: wait[rank] for rank in RECORDED}
    assert waits.awaited_ns == {rank: awaited[rank] for rank in RECORDED}
    assert waits.last_arrivals == {rank: last[rank] for rank in RECORDED}
    assert last == {7: 5, 5: 2, 4: 1}
    assert sum(waits.wait_ns.values()) == sum(waits.awaited_ns.values())


def test_the_rank_with_most_work_need_not_be_the_one_that_others_wait_for():
    value = known(distributed(recorded()))
    # By hand: rank 5 waits 6,041 µs, so its own work is 17,797 - 6,041 µs, the longest; mostly for rank 7, whose step
    # began last, 6,216 µs after rank 3's.
    assert (value.straggler.rank, value.straggler.category) == (5, "host_compute")
    assert [share.work_ns for share in value.ranks if share.rank == 5] == [11_756_000]
    assert (value.awaited.rank, value.awaited.late_ns, value.awaited.last_arrival_share) == (7, 6_216_000, 5 / 8)
    waits_us = sum(
        max(begun) - start
        for n, (begun) in enumerate(zip(*([s for s, _ in each[-1]] for each in RECORDED.values()), strict=True))
        for start in begun
        if n < 5  # to these rank 7 came last
    )
    assert value.awaited.wait_ns == pytest.approx(waits_us * 1000 / 7)


def test_durations_tell_the_same_where_clocks_differ():
    one, apart = distributed(recorded()), distributed(recorded(clock_ns=10**9))
    assert (one.clocks_comparable, apart.clocks_comparable) == (True, False)
    assert apart.awaited.rank == one.awaited.rank
    assert apart.awaited.share == pytest.approx(one.awaited.share, abs=0.01)
    assert apart.awaited.late_ns is None
    assert {share.late_ns for share in apart.ranks} == {None}
    for mine, other in zip(one.ranks, apart.ranks, strict=True):
        # A collective ends everywhere within some µs.
        assert mine.wait_ns == pytest.approx(other.wait_ns, abs=100_000)


def test_skew_by_collective():
    waits = collective_waits({times.rank: times for times in recorded()})
    send, reduce = waits.skew
    assert send == CollectiveSkew("SendRecv", "", 5, 1_910_400, 7_624_000, 7)
    assert (reduce.calls, reduce.max_skew_ns) == (3, 885_000)


def test_a_rank_alone_in_a_collective_waits_for_nobody():
    alone = RankTimes(0, 2, None, 1, 100.0, (), (CollectiveCall(0, "AllReduce", "", 0, 50),))
    waits = collective_waits({0: alone})
    assert (waits.matched, waits.clocks_comparable, waits.skew) == (0, None, ())
    assert waits.wait_ns == {0: 0}


@pytest.mark.parametrize(("late_us", "named"), [(5, None), (40, 1)])
def test_waits_that_matter_to_no_step_name_nobody(late_us, named):
    def rank(number: int, start_us: int) -> RankTimes:
        calls = tuple(
            CollectiveCall(step, "AllReduce", "", step * 10**6 + start_us * 1000, 90_000) for step in range(4)
        )
        return RankTimes(number, 2, None, 4, 1e6, (("communication", 9e4),), calls, 0, 0)

    value = known(distributed([rank(0, 10), rank(1, 10 + late_us)]))
    assert (value.awaited.rank if value.awaited is not None else None) == named
    if value.awaited is not None:
        # Both began at once: nothing of the wait comes from before the recording.
        assert (value.awaited.wait_ns, value.awaited.share, value.awaited.late_ns) == (40_000, 1, None)


def test_no_rank_is_named_when_each_waits_for_each():
    def rank(number: int) -> RankTimes:
        starts = [step * 10**6 + 200_000 * (step % 2 == number) for step in range(4)]
        calls = tuple(CollectiveCall(step, "AllReduce", "", start, 300_000) for step, start in enumerate(starts))
        return RankTimes(number, 2, None, 4, 1e6, (("communication", 3e5),), calls, 0, 0)

    value = known(distributed([rank(0), rank(1)]))
    assert [share.awaited_ns for share in value.ranks] == [100_000, 100_000]
    assert value.awaited is None


def test_means_and_collectives_of_a_rank():
    recorded = {"Collective name": "allreduce", "dtype": "Float", "Process Group Name": "dp", "Group size": 2}
    trace = (
        TraceBuilder()
        .rank(1, 2)
        .step(4, 0, 100)
        .step(5, 100, 50)
        .launch("gemm", call_us=5, call_duration_us=5, start_us=10, duration_us=40)
        .kernel("ncclAllReduce", 60, 20, 77, **recorded)
        .kernel("ncclBroadcast", 110, 5, 78)
        .launch("gemm", call_us=101, call_duration_us=5, start_us=120, duration_us=30)
        .kernel("ncclBroadcast", 500, 5, 80)
        .build()
    )
    times = rank_times(trace, breakdown(trace), 1)
    assert (times.rank, times.world_size, times.steps, times.step_ns) == (1, 2, 2, 75_000)
    assert times.collectives == (
        CollectiveCall(4, "allreduce", "dp", 60_000, 20_000),
        CollectiveCall(5, "ncclBroadcast", "", 110_000, 5_000),
    )
    assert dict(times.categories_ns)["communication"] == 12_500
    assert sum(time for _, time in times.categories_ns) == times.step_ns


def test_collectives_on_the_host():
    builder = TraceBuilder().step(1, 0, 100).op("aten::mm", 0, 40).annotation("gloo:all_reduce", 50, 30, thread=7)
    trace = builder.build()
    times = rank_times(trace, breakdown(trace), 0)
    assert times.collectives == (CollectiveCall(1, "gloo:all_reduce", "", 50_000, 30_000),)


def all_reduces(rank: int, duration_us: list[int], **facts):
    """Steps with an all-reduce of 4,000 bytes between two ranks of one host, or of the given facts."""
    builder = TraceBuilder().gpu("NVIDIA H100 80GB HBM3").rank(rank, 2)
    builder.top_level.update({"host_name": "a"} | facts)
    args: dict[str, Any] = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1000, "Group size": 2}
    for n, duration in enumerate(duration_us):
        builder.step(n, 1000 * n, 1000)
        builder.launch(
            "ncclDevKernel_AllReduce", call_us=1000 * n, call_duration_us=2, start_us=1000 * n + 500 - duration,
            duration_us=duration, **args,
        )  # fmt: skip
    return builder.build()


def used(traces, given=None, ranks=(0, 1)):
    compared = distributed([rank_times(traces[rank], breakdown(traces[rank]), rank) for rank in ranks])
    found = known(communication(traces[0]))
    return known(link_use(found.collectives, traces[0].metadata, compared, given)), known(compared)


def test_the_last_rank_to_arrive_gives_the_bandwidth():
    """An all-reduce of two ranks sends its 4,000 bytes once. The shorter times are 10 and 30 µs."""
    use, compared = used([all_reduces(0, [10, 200]), all_reduces(1, [100, 30])])
    assert use.bus_bytes_per_s == compared.bus_bytes_per_s == pytest.approx(8000 / 40e-6)
    assert (use.at_least, use.link, use.link_bytes_per_s, use.missing) == (False, "NVLink 4", 450e9, None)
    assert use.share == pytest.approx(8000 / 40e-6 / 450e9)
    assert use.call_bus_bytes == pytest.approx(4000)


def test_one_rank_of_several_gives_a_lower_bound_and_no_link():
    use, _ = used([all_reduces(0, [10, 200])], ranks=[0])
    assert (use.at_least, use.share, use.missing) == (True, None, "ranks may be on several machines")
    assert use.bus_bytes_per_s == pytest.approx(4000 / 10e-6)  # the shortest call
    given, _ = used([all_reduces(0, [10, 200])], 50e9, ranks=[0])
    assert (given.link, given.share) == ("the given link", pytest.approx(4000 / 10e-6 / 50e9))


@pytest.mark.parametrize(
    ("facts", "link", "missing"),
    [
        ({"lightning_perf.settings": {"nodes": 1}, "host_name": None}, "NVLink 4", None),
        ({"lightning_perf.settings": {"nodes": 2}}, None, "ranks are on several machines"),
        ({"deviceProperties": [{"name": "NVIDIA H100 PCIe"}]}, None, "no link of NVIDIA H100 PCIe is known"),
    ],
)
def test_the_link_is_never_guessed(facts, link, missing):
    use, _ = used([all_reduces(rank, [10], **facts) for rank in (0, 1)])
    assert (use.link, use.missing) == (link, missing)


def test_ranks_of_two_hosts_have_no_known_link():
    use, _ = used([all_reduces(0, [10]), all_reduces(1, [10], host_name="b")])
    assert use.missing == "ranks are on several machines"


@pytest.mark.corpus
def test_the_bandwidth_of_a_real_recording(corpus):
    """By nccl-tests' definition from the JSON: bytes of each size over its shortest call. Two ranks: a factor of 1."""
    (path,) = (corpus / "traces").glob("hta/nccl_parser_config/*")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    shortest, calls = {}, Counter()
    for event in events:
        args = event.get("args", {})
        if event.get("cat") == "kernel" and "Collective name" in args:
            elements = {"Float": 4, "Long": 8}[args["dtype"]] * args["In msg nelems"]
            key = args["Collective name"], elements
            calls[key] += 1
            shortest[key] = min(shortest.get(key, 1e9), event["dur"])
    bandwidth = sum(key[1] * n for key, n in calls.items()) / sum(shortest[key] * n for key, n in calls.items()) * 1e6
    trace = read_trace(path)
    use = known(link_use(known(communication(trace)).collectives, trace.metadata, None, 300e9))
    assert (use.bus_bytes_per_s, use.share) == pytest.approx((bandwidth, bandwidth / 300e9), rel=1e-4)
