"""Recorded steps that are slow, on hand-made recordings with known step times."""

from pathlib import Path

import pytest

import lightning_perf
from lightning_perf.report.build import build_report
from lightning_perf.run_files.captures import WINDOWS, RecordedWindow
from lightning_perf.run_files.steps import STEPS, StepSample
from tests.report.test_build import recording
from tests.support.trace_builder import TraceBuilder


@pytest.mark.parametrize(("usual_us", "said"), [(90, False), (50, True)])
def test_the_cost_of_the_profiler_is_said_where_it_matters(tmp_path: Path, usual_us: int, said: bool) -> None:
    path = recording().write(tmp_path / "trace.json")  # its steps take 100 µs
    samples = [StepSample(step, 1000 * usual_us, 0, None, None, False) for step in range(30)]
    notes = build_report([path], samples=samples).notes
    assert any(note.startswith("Recorded steps took 2.00× as long") for note in notes) == said


def test_options_of_the_profiler_are_named_where_they_distort(tmp_path: Path) -> None:
    builder = recording()
    builder.top_level |= {"with_stack": 1, "record_shapes": 1}
    path = builder.write(tmp_path / "trace.json")
    samples = [StepSample(step, 50_000, 0, None, None, False) for step in range(30)]
    (slow,) = [note for note in build_report([path], samples=samples).notes if "2.00×" in note]
    assert "The profiler (with_stack=True, record_shapes=True), or other work" in slow
    # Without a step log nobody knows the cost, but stacks are known to cost the host time.
    unmeasured = build_report([path]).notes
    assert any("every Python call (with_stack=True, record_shapes=True)" in note for note in unmeasured)
    plain = recording().write(tmp_path / "plain.json")
    assert not any("Python call" in note for note in build_report([plain]).notes)


@pytest.mark.parametrize(("before_ns", "says"), [(100_000, "slow stretch"), (50_000, "The profiler, or other work")])
def test_recorded_steps_are_not_called_slowed_when_those_before_were_as_slow(
    tmp_path: Path, before_ns: int, says: str
) -> None:
    recording(0, 1).write(tmp_path / "rank0.1000000001.pt.trace.json.gz")
    times_ns = [before_ns] * 20 + [100_000] * 10 + [50_000] * 70
    samples = [StepSample(step, ns, 0, None, None, 20 <= step < 30) for step, ns in enumerate(times_ns)]
    (tmp_path / "steps.rank0.jsonl").write_bytes(STEPS.encode(*samples))
    (tmp_path / "windows.rank0.jsonl").write_bytes(WINDOWS.encode(RecordedWindow("", 20, 29, 2, 10, 10, 10)))
    (note,) = lightning_perf.analyze(tmp_path).notes
    assert note.startswith("Recorded steps took 2.00× as long as")
    assert says in note


@pytest.mark.parametrize(("usual_us", "slower"), [(100, False), (50, True)])
def test_steps_that_stand_apart_are_told_from_a_recording_that_is_slow(
    tmp_path: Path, usual_us: int, slower: bool
) -> None:
    builder, begin_us = TraceBuilder(), 0
    for number, wall_us in enumerate([100, 101, 9000, 100, 99, 100]):
        builder.step(number, begin_us, wall_us).op("aten::mm", begin_us + 10, 20)
        begin_us += wall_us
    path = builder.write(tmp_path / "trace.json")
    samples = [StepSample(step, 1000 * usual_us, 0, None, None, False) for step in range(30)]
    _, stall, *others = build_report([path], samples=samples).notes  # the first: there is no device
    assert stall == (
        "Step 2 took 9.00 ms, the other recorded steps 100 µs on average. The means "
        "(1.58 ms) include the slow ones and are higher because of them."
    )
    assert [note[:38] for note in others] == (["Recorded steps took 2.00× as long as s"] if slower else [])


@pytest.mark.parametrize(("fetch_us", "waits"), [(10, False), (60, True)])
def test_recorded_steps_that_mostly_wait_longer_for_data_say_so(tmp_path: Path, fetch_us: int, waits: bool) -> None:
    builder = TraceBuilder()
    for number in range(6):
        builder.step(number, 100 * number, 100).annotation("perf::fetch", 100 * number, fetch_us)
    path = builder.write(tmp_path / "trace.json")
    samples = [StepSample(step, 50_000, 5_000, None, None, False) for step in range(30)]
    (slow,) = [note for note in build_report([path], samples=samples).notes if "2.00×" in note]
    assert ("Most of that is waiting for data, 55.0 µs longer than in the median step." in slow) == waits
