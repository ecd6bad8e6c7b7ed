from msgspec.structs import replace

import lightning_perf
from lightning_perf.analysis.ranks.distributed import Awaited, Distributed, RankShare, Straggler
from lightning_perf.analysis.trust import Trust, WindowTrust
from lightning_perf.report.sentences import trust_line, who_waits
from lightning_perf.run_files.captures import RecordedWindow
from lightning_perf.statistics.exact import Ratio
from tests.findings.recordings import training
from tests.report.support import rendered

SOUND = Trust(5, 0, 0, 900, 0, 0, 0)


def window(lasting: float, returned: bool | None, capture: str = "") -> WindowTrust:
    around = Ratio(lasting, lasting - 0.01, lasting + 0.01, 0.95)
    return WindowTrust(
        RecordedWindow(capture, 10, 17, 5, 1, 1, 1), 10, 11, 10, Ratio(1.1, 1.08, 1.12, 0.95), around, returned, 5
    )


def test_what_is_missing_is_counted() -> None:
    assert trust_line(SOUND) == "5 of 5 steps complete, no event lost, every kernel has its launch."
    doubtful = Trust(5, 1, 12, 1000, 10, 2, 1)
    assert trust_line(doubtful) == (
        "4 of 5 steps complete, 12 events lost, 1 recording cut short, no device work in 2 recordings of a GPU's run, "
        "99.0 % of 1,000 kernels have their launch."
    )
    assert trust_line(Trust(0, 0, 0, 0, 0, 0, 0)) == "No event lost."  # without step marks
    line = trust_line(replace(SOUND, cost_ns=120_000_000, cost_share=0.012, analysis_ns=2_000_000_000))
    assert line.endswith("The profiler cost 120 ms, 1.2 % of the steps' time. The analysis took 2.00 s.")


def test_whether_the_step_time_came_back() -> None:
    for returned, words in (
        (True, "recovered"),
        (False, "did not recover"),
        (None, "is unknown"),
    ):
        line = trust_line(replace(SOUND, windows=(window(1.05, returned),)))
        assert "Steps under the profiler took 1.10×" in line
        assert f"{words}: 1.05× (95 % CI 1.04× to 1.06×)." in line
    worst = (window(1.0, True), window(1.2, False), window(1.9, False, "slow-step-9"))  # of the scheduled ones
    assert "did not recover: 1.20×" in trust_line(replace(SOUND, windows=worst))


WORK = Straggler(5, "host_compute", 1_376_000.0, 0.25)
RANK = RankShare(0, None, 1, 1e6, None, None, 0.0, None, 1e6, 0)
EVEN = Distributed((RANK, replace(RANK, rank=1)), 8, (), True, 8, (), 0.181, 1_800_000.0, None)


def test_one_rank_with_most_work_for_which_the_others_wait():
    awaited = Awaited(5, 900_000.0, 0.9, 0.75, 2_000_000)
    (sentence,) = who_waits(replace(EVEN, straggler=WORK, awaited=awaited))
    assert sentence == (
        "The others wait for rank 5: 1.38 ms per step more in host operators. Evenly spread, a step would take "
        "1.80 ms less."
    )


def test_work_and_waits_may_name_two_ranks():
    awaited = Awaited(7, 5_078_857.0, 0.759, 0.625, 6_216_000)
    first, second = who_waits(replace(EVEN, straggler=WORK, awaited=awaited))
    assert first.startswith("The most work is on rank 5: 1.38 ms per step more")
    assert second == (
        "In collectives the others wait longest for rank 7: 5.08 ms per step, 75.9 % of all waits. It began the "
        "recording 6.22 ms after the first rank, for a reason before the recording."
    )
    (alone,) = who_waits(replace(EVEN, awaited=replace(awaited, late_ns=None)))
    assert alone == "In collectives the others wait longest for rank 7: 5.08 ms per step, 75.9 % of all waits."
    assert who_waits(EVEN) == ("No rank keeps the others waiting.",)
    missing = replace(EVEN, missing_ranks=(3,))
    assert who_waits(missing) == ("None of the ranks that were read keeps the others waiting.",)
    assert who_waits(None) == who_waits(replace(EVEN, ranks=(RANK,))) == ()


def test_findings_say_whose_they_are_where_there_are_several(tmp_path):
    def findings() -> list[str]:
        lines = rendered(lightning_perf.analyze(tmp_path)).splitlines()
        return [line for line in lines if line.startswith("1. ")]

    training(fetch_us=5000).write(tmp_path / "rank0.pt.trace.json")
    (alone,) = findings()
    assert alone.endswith("[input-bound · high]")
    for rank in range(2):
        training(fetch_us=5000 + rank).rank(rank, 2).write(tmp_path / f"rank{rank}.pt.trace.json")
    (whose,) = findings()
    assert whose.endswith("[input-bound · high, rank 1]")
