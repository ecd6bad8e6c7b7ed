from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_perf.analysis.ranks.distributed import Distributed, distributed
from lightning_perf.analysis.ranks.rank_times import RankTimes, rank_times
from lightning_perf.findings.ranks import rank_imbalance
from tests.findings.recordings import analysis, reducing
from tests.support.trace_builder import TraceBuilder


def compared(*builders: TraceBuilder) -> Distributed:
    times: list[RankTimes] = []
    for rank, builder in enumerate(builders):
        trace = builder.build()
        times.append(rank_times(trace, analysis(builder).breakdown, rank))
    result = distributed(times)
    assert result is not None
    return result


def test_a_rank_with_more_work_holds_up_the_others() -> None:
    finding = rank_imbalance(compared(reducing(900, compute_us=600), reducing(100, rank=1, compute_us=1400)))
    assert finding is not None
    assert finding.rank == 1
    assert "bucketed by length" in finding.action
    # Works of 0.7 and 1.5 ms (waits of 0.8 ms taken off): evenly spread a step takes 1.1 ms.
    assert finding.saving_high_ms == pytest.approx(0.4, rel=0.05)


def test_equal_ranks_are_fine() -> None:
    assert rank_imbalance(compared(reducing(100), reducing(100, rank=1))) is None


def test_most_work_is_not_said_to_hold_up_others_who_wait_for_another_rank() -> None:
    value = compared(reducing(900, compute_us=600), reducing(100, rank=1, compute_us=1400))
    ours = rank_imbalance(value)
    assert ours is not None
    assert ours.title.startswith("Imbalance: rank 1 holds up the others with ")
    assert value.awaited is not None
    other = rank_imbalance(replace(value, awaited=replace(value.awaited, rank=0, share=0.7)))
    assert other is not None
    assert other.title.startswith("Imbalance: rank 1 has the most work, ")
    assert "But 70.0 % of the waits in collectives are for rank 0." in other.evidence
    assert other.saving_high_ms == ours.saving_high_ms
