"""How far a recording can be trusted, on hand-made runs with known answers."""

from collections.abc import Sequence

import numpy as np
import pytest

from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.analysis.steps.step_times import summarize_step_times
from lightning_perf.analysis.trust import Trust, trust
from lightning_perf.callbacks.recording.schedule import Schedule
from lightning_perf.report.sentences import trust_line
from lightning_perf.run_files.captures import RecordedWindow
from lightning_perf.run_files.steps import StepSample
from tests.support.known import known
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000


def run(*parts: tuple[int, float, bool]) -> list[StepSample]:
    """Samples from (steps, milliseconds, profiled), with a spread of one per cent."""
    rng = np.random.default_rng(1)
    samples: list[StepSample] = []
    for steps, time_ms, profiled in parts:
        for _ in range(steps):
            step_ns = round(time_ms * MS * (1 + 0.01 * rng.uniform(-1, 1)))
            samples.append(StepSample(len(samples), step_ns, 0, None, 2, profiled))
    return samples


def window(first: int, last: int, capture: str = "", pause_ms: int = 30, export_ms: int = 70) -> RecordedWindow:
    return RecordedWindow(capture, first, last, last - first, pause_ms * MS, export_ms * MS, 1000)


@pytest.mark.parametrize(("after_ms", "returned"), [(10.0, True), (9.5, True), (10.5, False)])
def test_whether_the_step_time_returned(after_ms: float, returned: bool) -> None:
    samples = run((40, 10.0, False), (8, 15.0, True), (40, after_ms, False))
    result = known(trust([], samples, [window(40, 47)]))
    (each,) = result.windows
    assert each.returned is returned
    assert each.overhead is not None
    assert each.overhead.estimate == pytest.approx(1.5, rel=0.02)
    assert each.lasting is not None
    assert each.lasting.low <= after_ms / 10 <= each.lasting.high
    assert (each.before_ns, each.inside_ns, each.after_ns) == pytest.approx((10 * MS, 15 * MS, after_ms * MS), rel=0.02)
    assert each.cost_ns == pytest.approx(8 * 5 * MS + 100 * MS, rel=0.02)
    assert result.cost_share == pytest.approx(140 / (400 + 120 + 40 * after_ms + 100), rel=0.02)


def test_a_change_long_after_the_window_is_not_the_profilers() -> None:
    samples = run((40, 10.0, False), (8, 15.0, True), (21, 10.0, False), (60, 40.0, False))
    result = known(trust([], samples, [window(40, 47)]))
    assert result.windows[0].returned is True
    assert summarize_step_times(samples).after_profiling == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    "samples",
    [
        run((40, 10.0, False), (8, 15.0, True), (2, 20.0, False)),  # too few after
        run((7, 10.0, False), (8, 15.0, True), (40, 20.0, False)),  # too few before: five warm up
    ],
)
def test_too_few_steps_tell_nothing(samples: Sequence[StepSample]) -> None:
    first = next(sample.step for sample in samples if sample.profiled)
    result = known(trust([], samples, [window(first, first + 7)]))
    assert result.windows[0].lasting is None
    assert result.windows[0].returned is None


def test_a_window_is_compared_with_the_steps_up_to_the_next_one() -> None:
    samples = run((30, 10.0, False), (4, 12.0, True), (30, 10.0, False), (4, 12.0, True), (30, 20.0, False))
    result = known(trust([], samples, [window(30, 33), window(64, 67, "slow-step-64")]))
    assert [each.returned for each in result.windows] == [True, False]
    assert result.cost_ns == pytest.approx(2 * (4 * 2 + 100) * MS, rel=0.05)


def test_a_cost_that_is_unknown_of_one_window_is_unknown() -> None:
    result = known(trust([], run((5, 15.0, True), (30, 10.0, False)), [window(0, 4)]))
    assert result.windows[0].before_ns is None
    assert result.cost_ns is None
    assert result.cost_share is None


def test_a_stall_of_the_run_is_no_cost_of_the_profiler() -> None:
    samples = run(
        (40, 10.0, False), (1, 30.0, True), (2, 12.0, True), (4, 12.0, True), (1, 3000.0, True), (9, 10, False)
    )
    recorded = RecordedWindow("", 40, 47, 5, 30 * MS, 70 * MS, 1000)
    result = known(trust([], samples, [recorded]))
    assert result.cost_ns == pytest.approx((20 + 6 * 2 + 100) * MS, rel=0.02)  # the slow first step is of its start


def test_nothing_recorded_is_nothing_to_trust() -> None:
    assert trust([], run((5, 10.0, False))) is None


def test_what_is_missing_from_a_recording_is_counted() -> None:
    sound = (
        TraceBuilder()
        .gpu("NVIDIA A100-SXM4-40GB")
        .step(1, 0, 100)
        .op("aten::mm", 10, 20, types=["float", "float"], dims=[[8, 8], [8, 8]])
        .launch("gemm", call_us=12, call_duration_us=5, start_us=30, duration_us=40)
        .build()
    )
    deviceless = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB").step(1, 0, 100).op("aten::mm", 10, 20).build()
    result = known(trust([analyze_rank(sound), analyze_rank(deviceless)]))
    assert (result.steps, result.incomplete_steps, result.lost_events) == (2, 0, 0)
    assert (result.kernels, result.unlinked_kernels) == (1, 0)
    assert result.deviceless_ranks == 1
    assert not result.sound
    alone = known(trust([analyze_rank(sound)]))
    assert alone.sound


def test_the_default_schedule_has_room_for_the_comparison() -> None:
    schedule = Schedule()
    first, steps = schedule.skip_first + schedule.wait, schedule.warmup + schedule.active
    samples = run((first, 10.0, False), (steps, 12.0, True), (20, 10.0, False))
    result = known(trust([], samples, [window(first, first + steps - 1)]))
    assert result.windows[0].overhead is not None
    assert result.windows[0].returned is not False


def recording(lost: int = 0) -> TraceBuilder:
    """One step of ten launches; the kernels of the first ones are missing."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB").step(1, 0, 1000)
    for number in range(10):
        at = 20 + 20 * number
        builder.op("aten::mm", at, 15, types=["float", "float"], dims=[[8, 8], [8, 8]])
        if number < lost:
            builder.runtime("cudaLaunchKernel", at + 2, 5, correlation=9000 + number)
        else:
            builder.launch("gemm", call_us=at + 2, call_duration_us=5, start_us=at + 20, duration_us=15)
    return builder


def trusted(builder: TraceBuilder) -> Trust:
    return known(trust([analyze_rank(builder.build())]))


@pytest.mark.parametrize(
    ("lost", "line"),
    [(3, "3 launches without recorded work: device times are too low"), (1, "1 launch without recorded work"), (0, "")],
)
def test_launches_without_a_kernel_are_counted(lost: int, line: str) -> None:
    found = trusted(recording(lost=lost))
    assert (found.kernels, found.unlinked_kernels, found.empty_launches) == (10 - lost, 0, lost)
    assert found.sound == (not lost)
    assert line in trust_line(found)
    assert ("without recorded work" in trust_line(found)) == bool(lost)


LAUNCH, BEGIN, END = "cudaLaunchKernel", "cudaStreamBeginCapture", "cudaStreamEndCapture"


@pytest.mark.parametrize(
    ("calls", "empty"),
    [
        # A runtime call and the driver's call below it share a correlation.
        ([(LAUNCH, 500, 77), ("cuLaunchKernel", 502, 77)], 0),
        # Calls that capture a graph start no work, also if the capture began before the recording.
        (
            [
                (BEGIN, 300, 0),
                (LAUNCH, 310, 80),
                (LAUNCH, 320, 81),
                (END, 390, 0),
            ],
            0,
        ),
        (
            [
                (BEGIN, 300, 0),
                (LAUNCH, 310, 80),
                (END, 390, 0),
                (LAUNCH, 400, 81),
            ],
            1,
        ),
        ([(LAUNCH, 2, 80), (END, 12, 0)], 0),
    ],
)
def test_launches_that_need_no_kernel_of_their_own(calls: list[tuple[str, int, int]], empty: int) -> None:
    builder = recording().kernel("gemm", 520, 15, 77)
    for name, start_us, correlation in calls:
        builder.runtime(name, start_us, 2, correlation=correlation)
    assert trusted(builder).empty_launches == empty


def test_another_thread_captures() -> None:
    builder = recording(lost=1)
    builder.runtime(BEGIN, 5, 2, thread=99).runtime(END, 900, 2, thread=99)
    assert trusted(builder).empty_launches == 1
