"""The waits of a real training on eight GPUs.

The figures are those of ``et_replay/tests/inputs/dlrm_kineto.tar.gz`` in https://github.com/facebookresearch/param
(commit 1e115ff, MIT): the recommendation model DLRM on eight V100 over NCCL, one recorded step. docs/corpus.md says how
to get the recording itself.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from lightning_perf.analysis.ranks.distributed import CollectiveSkew, collective_waits, distributed
from lightning_perf.analysis.ranks.rank_times import CollectiveCall, RankTimes

KERNELS = ("SendRecv",) * 4 + ("AllReduce", "SendRecv", "AllReduce", "AllReduce")

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
        ranks.append(RankTimes(rank, 8, None, 1, length * 1e3, categories, calls, False, 10, begin_ns))
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
    value = distributed(recorded())
    assert value is not None
    assert value.straggler is not None
    assert value.awaited is not None
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
    assert one is not None
    assert apart is not None
    assert (one.clocks_comparable, apart.clocks_comparable) == (True, False)
    assert one.awaited is not None
    assert apart.awaited is not None
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
    alone = RankTimes(0, 2, None, 1, 100.0, (), (CollectiveCall(0, "AllReduce", "", 0, 50),), False)
    waits = collective_waits({0: alone})
    assert (waits.matched, waits.clocks_comparable, waits.skew) == (0, None, ())
    assert waits.wait_ns == {0: 0}


@pytest.mark.parametrize(("late_us", "named"), [(5, None), (40, 1)])
def test_waits_that_matter_to_no_step_name_nobody(late_us, named):
    def rank(number: int, start_us: int) -> RankTimes:
        calls = tuple(
            CollectiveCall(step, "AllReduce", "", step * 10**6 + start_us * 1000, 90_000) for step in range(4)
        )
        return RankTimes(number, 2, None, 4, 1e6, (("communication", 9e4),), calls, False, 0, 0)

    value = distributed([rank(0, 10), rank(1, 10 + late_us)])
    assert value is not None
    assert (value.awaited.rank if value.awaited is not None else None) == named
    if value.awaited is not None:
        # Both began at once: nothing of the wait comes from before the recording.
        assert (value.awaited.wait_ns, value.awaited.share, value.awaited.late_ns) == (40_000, 1, None)


def test_no_rank_is_named_when_each_waits_for_each():
    def rank(number: int) -> RankTimes:
        starts = [step * 10**6 + 200_000 * (step % 2 == number) for step in range(4)]
        calls = tuple(CollectiveCall(step, "AllReduce", "", start, 300_000) for step, start in enumerate(starts))
        return RankTimes(number, 2, None, 4, 1e6, (("communication", 3e5),), calls, False, 0, 0)

    value = distributed([rank(0), rank(1)])
    assert value is not None
    assert [share.awaited_ns for share in value.ranks] == [100_000, 100_000]
    assert value.awaited is None
