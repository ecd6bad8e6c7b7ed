from __future__ import annotations

import pytest

from lightning_perf.findings.host import cold_start, launch_bound
from lightning_perf.findings.memory import memory_spare
from tests.findings.recordings import A100, analysis, training
from tests.support.trace_builder import TraceBuilder


def eager(kernel_us: int, *, call_us: int = 5, steps: int = 3) -> TraceBuilder:
    """Operators of 20 µs back to back; each kernel starts when its call returns and runs for `kernel_us`."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for start in builder.steps(steps, 2000):
        for number in range(2000 // (15 + call_us)):
            at = start + number * (15 + call_us)
            builder.op("aten::add", at, 15 + call_us)
            builder.launch(
                "elementwise", call_us=at + 10, call_duration_us=call_us, start_us=at + 10 + call_us,
                duration_us=kernel_us,
            )  # fmt: skip
    return builder


def test_the_device_waits_for_the_host() -> None:
    finding = launch_bound(analysis(eager(5)))
    assert finding is not None
    # Of each 20 µs the device works 5: it waits for 15 of 20.
    assert "75." in finding.title
    assert finding.saving_low_ms == pytest.approx(0.3 * 1.5, rel=0.02)
    assert finding.saving_high_ms == pytest.approx(0.9 * 1.5, rel=0.02)
    assert "torch.compile" in finding.action


@pytest.mark.parametrize(("kernel_us", "fires"), [(16, True), (18, False)])
def test_threshold_of_15_percent(kernel_us: int, fires: bool) -> None:
    assert (launch_bound(analysis(eager(kernel_us))) is not None) == fires


def test_a_device_that_is_fed_ahead() -> None:
    assert launch_bound(analysis(training())) is None


def test_the_first_steps_are_told_apart() -> None:
    recorded = analysis(eager(5, call_us=400))
    assert launch_bound(recorded) is None
    cold = cold_start(recorded)
    assert cold is not None
    assert "skip_first" in cold.action
    assert cold_start(analysis(eager(5))) is None


def test_launches_that_wait_for_room_in_the_queue_are_not_the_first() -> None:
    builder = training()
    for step in range(4):
        for number in range(8):
            at = step * 10_020 + 700 + 1_100 * number
            builder.launch("elementwise", call_us=at, call_duration_us=1_000, start_us=at + 1_050, duration_us=1)
    assert cold_start(analysis(builder)) is None


def test_a_graph_takes_long_to_launch_however_warm_its_kernels_are() -> None:
    builder = training()
    for step in range(4):
        at = step * 10_020 + 700
        builder.runtime("cudaGraphLaunch", at, 9_000, correlation=step + 1)
        for number in range(50):
            builder.kernel("elementwise", at + 9_000 + 4 * number, 3, step + 1)
    assert cold_start(analysis(builder)) is None


def test_memory_to_spare_is_told_to_those_who_can_use_it() -> None:
    small, large = 2**30, 20 * 2**30
    for peak, builder, fires in ((small, eager(5), True), (large, eager(5), False), (small, training(), False)):
        builder.memory(100, peak, allocated=peak, reserved=peak)
        assert (memory_spare(analysis(builder)) is not None) == fires
