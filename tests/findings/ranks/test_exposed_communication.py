from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_perf.analysis.ranks.distributed import Distributed, distributed
from lightning_perf.analysis.ranks.rank_times import RankTimes, rank_times
from lightning_perf.findings.ranks.data_parallel import data_parallel
from lightning_perf.findings.ranks.exposed_communication import exposed_communication
from lightning_perf.findings.ranks.rank_imbalance import rank_imbalance
from lightning_perf.findings.registry import find
from tests.findings.recordings import A100, BF16_GEMM, analysis, training
from tests.support.trace_builder import TraceBuilder


def reducing(exposed_us: int, *, rank: int = 0, compute_us: int = 1000, wrapper: bool = True) -> TraceBuilder:
    """Steps of compute, then an all-reduce that no compute hides."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100).rank(rank, 2)
    length = compute_us + exposed_us
    for step in range(3):
        start = step * 2000
        builder.step(step, start, length)
        if wrapper:
            builder.annotation("DistributedDataParallel.forward", start, 50)
        builder.op("aten::mm", start, 50)
        builder.launch(BF16_GEMM, call_us=start, call_duration_us=1, start_us=start + 1, duration_us=compute_us - 1)
        builder.launch(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL", call_us=start + 10, call_duration_us=5,
            start_us=start + compute_us, duration_us=exposed_us, stream=20,
        )  # fmt: skip
    return builder


def test_exposed_communication() -> None:
    finding = exposed_communication(analysis(reducing(250)))
    assert finding is not None
    assert finding.saving_high_ms == pytest.approx(0.25)
    assert finding.saving_low_ms == pytest.approx(0.0625)
    assert "DDPStrategy" in finding.action
    other = exposed_communication(analysis(reducing(250, wrapper=False)))
    assert other is not None
    assert "DDPStrategy" not in other.action


def reducing_on_the_host(exposed_us: int, *, rank: int = 0) -> TraceBuilder:
    """Steps of a millisecond, of which Gloo's collective fills so much with no operator at work."""
    builder = TraceBuilder().rank(rank, 2, backend="gloo")
    for step in range(3):
        builder.step(step, 1000 * step, 1000).op("aten::mm", 1000 * step, 1000 - exposed_us)
        builder.annotation("gloo:all_reduce", 1000 * step + 500, 500, thread=3000)
    return builder


def test_exposed_communication_on_the_host() -> None:
    finding = exposed_communication(analysis(reducing_on_the_host(400)))
    assert finding is not None
    assert "40.0 % of the step" in finding.title
    assert "accumulate_grad_batches" in finding.action
    assert (finding.saving_low_ms, finding.saving_high_ms) == (pytest.approx(0.075), pytest.approx(0.3))
    assert exposed_communication(analysis(reducing_on_the_host(40))) is None
    # The rank that waits least speaks here too.
    (of_two,) = find(map(analysis, (reducing_on_the_host(400), reducing_on_the_host(200, rank=1))))
    assert of_two.rank == 1


@pytest.mark.parametrize(("exposed_us", "fires"), [(51, False), (54, True)])
def test_threshold_of_5_percent(exposed_us: int, fires: bool) -> None:
    assert (exposed_communication(analysis(reducing(exposed_us))) is not None) == fires


def test_no_more_is_hidden_than_there_is_compute() -> None:
    finding = exposed_communication(analysis(reducing(900, compute_us=100)))
    assert finding is not None
    assert finding.saving_high_ms == pytest.approx(0.099, rel=0.02)


def test_data_parallel() -> None:
    assert data_parallel(analysis(training())) is None
    finding = data_parallel(analysis(training().annotation("DataParallel.forward", 30, 100)))
    assert finding is not None
    assert 'strategy="ddp"' in finding.action


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
    assert "bucket by length" in finding.action
    # Works of 0.7 and 1.5 ms (waits of 0.8 ms taken off): evenly spread a step takes 1.1 ms.
    assert finding.saving_high_ms == pytest.approx(0.4, rel=0.05)


def test_equal_ranks_are_fine() -> None:
    assert rank_imbalance(compared(reducing(100), reducing(100, rank=1))) is None


def test_most_work_is_not_said_to_hold_up_others_who_wait_for_another_rank() -> None:
    value = compared(reducing(900, compute_us=600), reducing(100, rank=1, compute_us=1400))
    ours = rank_imbalance(value)
    assert ours is not None
    assert ours.title.startswith("Rank 1 holds up the others: ")
    assert value.awaited is not None
    other = rank_imbalance(replace(value, awaited=replace(value.awaited, rank=0, share=0.7)))
    assert other is not None
    assert other.title.startswith("Rank 1 has the most work of its own: ")
    assert "But 70.0 % of the waits in collectives are for rank 0." in other.evidence
    assert other.saving_high_ms == ours.saving_high_ms
