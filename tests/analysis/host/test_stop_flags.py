from __future__ import annotations

import pytest

from lightning_perf.analysis.host.sync_points import StopFlags, stop_flags
from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.findings.ranks import stop_flags as find_stop_flags
from tests.support.trace_builder import TraceBuilder

US = 1000


def training(*, flag_us: int = 100, marked: bool = True, device: bool = False, batches: int = 1) -> TraceBuilder:
    """Three steps of 1000 µs; each ends with a broadcast that is read at once, `flag_us` from begin to end."""
    builder = TraceBuilder()
    if device:
        builder.gpu("NVIDIA A100-SXM4-40GB")
    for at in builder.steps(3, 1000):
        for batch in range(batches):
            begin = at + batch * 1000 // batches
            length = 1000 // batches - flag_us
            if marked:
                builder.annotation("perf::forward", begin, length - 10)
            builder.op("aten::mm", begin + 10, 50)
            # Inside of a phase a broadcast is the model's own: its buffers, which nobody reads.
            builder.op("c10d::broadcast_", begin + 70, 10)
            builder.op("aten::item", begin + 90, 10)
            builder.op("c10d::broadcast_", begin + length, 20)
            builder.op("aten::item", begin + length + flag_us - 5, 5)
        if device:  # runs on for 40 µs of the wait
            builder.launch("gemm", call_us=at + 10, call_duration_us=5, start_us=at + 20, duration_us=920)
    return builder


def test_a_broadcast_that_is_read_at_once_between_two_batches() -> None:
    assert stop_flags(training().build()) == StopFlags(3, 3, 300 * US, 300 * US)
    assert stop_flags(training(batches=2).build()) == StopFlags(3, 6, 600 * US, 600 * US)


def test_device_work_hides_it() -> None:
    assert stop_flags(training(device=True).build()) == StopFlags(3, 3, 300 * US, 3 * 60 * US)


def test_without_our_marks_nothing_is_said_to_be_lightnings() -> None:
    assert stop_flags(training(marked=False).build()) is None


def test_a_broadcast_with_other_work_after_it_is_none() -> None:
    builder = TraceBuilder().step(0, 0, 1000).annotation("perf::forward", 0, 500)
    builder.op("c10d::broadcast_", 600, 20).op("aten::add", 630, 5).op("aten::item", 640, 5)
    assert stop_flags(builder.build()) is None


@pytest.mark.parametrize(("flag_us", "found"), [(100, True), (31, True), (28, False)])
def test_the_finding(flag_us: int, found: bool) -> None:
    finding = find_stop_flags(analyze_rank(training(flag_us=flag_us).build()))
    assert (finding is not None) is found
    if finding is not None:
        assert finding.kind == "stop-flags"
        assert (finding.saving_low_ms, finding.saving_high_ms) == pytest.approx((flag_us / 2000, flag_us / 1000))
        assert "once per step" in finding.title
