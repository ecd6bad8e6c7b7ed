from __future__ import annotations

from lightning_perf.analysis.host.host_pace import HostPace, bounded_by_host, host_pace
from tests.support.trace_builder import TraceBuilder


def test_without_a_device_there_is_no_answer() -> None:
    assert host_pace(TraceBuilder().step(1, 0, 100).op("aten::mm", 0, 50).build()) is None


def test_without_marks_of_steps_operators_are_all_that_is_known() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 50).op("aten::mm", 80, 20)
    builder.launch("k", call_us=1, call_duration_us=5, start_us=6, duration_us=60)
    assert host_pace(builder.build()) == HostPace(1, 70_000, 70_000)


def test_a_host_that_runs_ahead_needs_less_than_the_step() -> None:
    builder = TraceBuilder()
    for step in range(2):
        builder.step(step, 300 * step, 300).op("aten::mm", 300 * step, 100)
        builder.launch("k", call_us=300 * step + 1, call_duration_us=5, start_us=10 + 900 * step, duration_us=900)
    trace = builder.build()
    assert trace.steps.end_ns.tolist() == [910_000, 1_810_000]
    assert host_pace(trace) == HostPace(2, 600_000, 200_000)


def test_a_host_at_its_limit_leaves_nothing_sure() -> None:
    pace = HostPace(steps=2, whole_ns=200, operators_ns=60)
    assert bounded_by_host(10.0, 90.0, 100.0, pace) == (0.0, 70.0)
    assert bounded_by_host(10.0, 90.0, 110.0, pace) == (5.0, 80.0)
    assert bounded_by_host(10.0, 90.0, 300.0, pace) == (10.0, 90.0)
    assert bounded_by_host(10.0, 90.0, 20.0, pace) == (0.0, 0.0)
    assert bounded_by_host(-5.0, 90.0, 300.0, None) == (-5.0, 90.0)
