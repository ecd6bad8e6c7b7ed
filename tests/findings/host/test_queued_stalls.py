from __future__ import annotations

import pytest

from lightning_perf.findings.host import queued_stalls
from tests.findings.recordings import STEP_US, analysis, training
from tests.support.trace_builder import TraceBuilder


def stalled(stall_us: int, *, queued: bool = True, steps: bool = True) -> TraceBuilder:
    """Four steps of two kernels, both launched at once, the second of which starts late."""
    builder = TraceBuilder()
    for number in range(4):
        start = number * STEP_US
        if steps:
            builder.step(number, start, STEP_US)
        builder.launch("first", call_us=start, call_duration_us=5, start_us=start + 5, duration_us=1000)
        call = start + 10 if queued else start + 1000 + stall_us
        rest = STEP_US - 1010 - stall_us
        builder.launch(
            "second", call_us=call, call_duration_us=5, start_us=start + 1005 + stall_us, duration_us=rest
        )  # fmt: skip
    return builder


def test_launched_work_that_does_not_start() -> None:
    finding = queued_stalls(analysis(stalled(6000)))
    assert finding is not None
    assert finding.title.startswith("Queued work does not start: the device idles 60.0 % of the step")
    assert (finding.saving_low_ms, finding.saving_high_ms, finding.severity) == (0, 6, "high")
    assert finding.evidence == (
        "1 gap above 100 µs per step, 6.00 ms together. Launched work waits there for something other than the host.",
        "The longest gap is 6.00 ms in step 0, 1.00 ms after the start of the recording.",
    )


@pytest.mark.parametrize(("stall_us", "fires"), [(495, False), (505, True)])
def test_threshold_of_5_percent(stall_us: int, fires: bool) -> None:
    assert (queued_stalls(analysis(stalled(stall_us))) is not None) == fires


def test_what_the_host_launched_late_is_no_stall() -> None:
    assert queued_stalls(analysis(stalled(6000, queued=False))) is None


def test_short_gaps_between_queued_kernels_are_no_stalls() -> None:
    builder = TraceBuilder().step(0, 0, STEP_US)
    for number in range(50):
        builder.launch("k", call_us=number * 10, call_duration_us=5, start_us=500 + number * 190, duration_us=95)
    value = analysis(builder)
    assert value.idle is not None
    assert {row.name: row.total_ns for row in value.idle.classes}["kernel_gap"] > 4_000_000
    assert (value.idle.stalls, value.idle.stalled_ns) == (1, 495_000)  # before the first kernel
    assert queued_stalls(value) is None


def test_a_recording_without_steps_and_one_without_a_fault() -> None:
    finding = queued_stalls(analysis(stalled(6000, steps=False)))
    assert finding is not None
    assert finding.title.endswith("60.0 % of the recording with launched work in its queue")
    assert finding.evidence[0].startswith("4 gaps above 100 µs in the recording, 24.0 ms together")
    assert queued_stalls(analysis(training())) is None
