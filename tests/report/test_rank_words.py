from __future__ import annotations

import io
from dataclasses import replace

import lightning_perf
from lightning_perf.analysis.distributed import Awaited, Distributed, RankShare, Straggler
from lightning_perf.report.rank_words import who_waits
from tests.findings.test_registry import training

WORK = Straggler(5, "host_compute", 1_376_000.0, 0.25)
RANK = RankShare(0, None, 1, 1e6, None, None, 0.0, None, 1e6, 0)
EVEN = Distributed((RANK, replace(RANK, rank=1)), 8, (), (), True, 8, (), 0.181, 1_800_000.0, None)


def test_one_rank_with_most_work_for_which_the_others_wait():
    awaited = Awaited(5, 900_000.0, 0.9, 0.75, 2_000_000)
    (sentence,) = who_waits(replace(EVEN, straggler=WORK, awaited=awaited))
    assert sentence == (
        "Rank 5 is what others wait for: 1.38 ms a step more in host operators; evenly spread, a step would take "
        "1.80 ms less."
    )


def test_work_and_waits_may_name_two_ranks():
    awaited = Awaited(7, 5_078_857.0, 0.759, 0.625, 6_216_000)
    first, second = who_waits(replace(EVEN, straggler=WORK, awaited=awaited))
    assert first.startswith("Rank 5 has the most work of its own: 1.38 ms a step more")
    assert second == (
        "In collectives the others wait longest for rank 7: 5.08 ms a step, 75.9 % of all waits. It began the "
        "recording 6.22 ms after the first rank, for a reason that lies before it."
    )
    (alone,) = who_waits(replace(EVEN, awaited=replace(awaited, late_ns=None)))
    assert alone == "In collectives the others wait longest for rank 7: 5.08 ms a step, 75.9 % of all waits."


def test_equal_ranks_are_said_to_be_equal_as_far_as_they_were_read():
    assert who_waits(EVEN) == ("No rank keeps the others waiting.",)
    assert who_waits(replace(EVEN, missing_ranks=(3,))) == (
        "None of the ranks that were read keeps the others waiting.",
    )


def test_one_rank_waits_for_nobody_that_is_known():
    assert who_waits(None) == ()
    assert who_waits(replace(EVEN, ranks=(RANK,))) == ()


def test_findings_say_whose_they_are_where_there_are_several(tmp_path):
    def findings() -> list[str]:
        file = io.StringIO()
        lightning_perf.analyze(tmp_path).print(file=file, width=120)
        return [line for line in file.getvalue().splitlines() if line.startswith("1. ")]

    training(fetch_us=5000).write(tmp_path / "rank0.pt.trace.json")
    (alone,) = findings()
    assert alone.endswith("[high]")
    for rank in range(2):
        training(fetch_us=5000 + rank).rank(rank, 2).write(tmp_path / f"rank{rank}.pt.trace.json")
    (whose,) = findings()
    assert whose.endswith("[high, rank 1]")
