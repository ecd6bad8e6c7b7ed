from __future__ import annotations

from lightning_perf.analysis.ranks.rank_times import CollectiveCall, rank_times
from lightning_perf.analysis.steps.breakdown import breakdown
from tests.support.trace_builder import TraceBuilder


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
