"""Captures against the scheduled window, on hand-made runs with known differences."""

import re
from pathlib import Path

import pytest

from lightning_perf import analyze
from lightning_perf.report.captured import captured
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.captures import CAPTURES, WINDOWS, CaptureRecord, CaptureTrigger, RecordedWindow, Slowdown
from lightning_perf.run_files.steps import STEPS, StepSample
from tests.support.trace_builder import TraceBuilder

SLOW = Slowdown(1_000_000, 1_250_000, (3_000_000, 3_100_000, 3_200_000))


def trace(folder: Path, *, fetch_us: int, first: int = 0, rank: int = 0, work_us: int = 900) -> None:
    """Two steps: a fetch, then an operator."""
    builder = TraceBuilder()
    for number in range(2):
        at = number * (fetch_us + work_us)
        builder.step(first + number, at, fetch_us + work_us)
        builder.annotation("perf::fetch", at, fetch_us)
        builder.op("aten::mm", at + fetch_us, work_us)
    folder.mkdir(parents=True, exist_ok=True)
    builder.write(folder / f"rank{rank}.{1_700_000_000_000_000_000 + first}.pt.trace.json")


def record(folder: Path, *records: CaptureRecord, rank: int = 0) -> None:
    with (folder / f"captures.rank{rank}.jsonl").open("ab") as file:
        file.writelines(map(CAPTURES.encode, records))


def test_what_differed_is_told_by_category_and_operator(tmp_path: Path) -> None:
    trace(tmp_path, fetch_us=100)
    trace(tmp_path / "slow-step-120", fetch_us=2100, first=121, work_us=1000)
    record(tmp_path, CaptureRecord("slow-step-120", CaptureTrigger.SLOW_STEPS, 119, SLOW))
    report = analyze(tmp_path)
    (capture,) = report.captures
    assert (capture.step, capture.rank, capture.ranks, capture.recorded_steps) == (119, 0, (0,), 2)
    assert capture.step_ns == 3_100_000
    assert capture.diff is not None
    assert capture.diff.step.change_ns == 2_100_000
    assert {row.name: row.change_ns for row in capture.diff.categories.rows if row.change_ns} == {
        "input": 2_000_000,
        "host_compute": 100_000,
    }
    assert capture.evidence == (
        "3 steps up to step 119 took 3.10 ms on average, 3.10× the usual 1.00 ms. The limit was 1.25 ms.",
        "A captured step takes 3.10 ms (mean of 2), a step of the scheduled window 1.00 ms (mean of 2).",
    )
    assert len(report.sources) == 1
    assert PerfReport.from_json(report.to_json()) == report


def test_a_slowness_that_was_over_is_said(tmp_path: Path) -> None:
    trace(tmp_path, fetch_us=100)
    trace(tmp_path / "slow-step-9", fetch_us=110, first=10)
    trace(tmp_path / "on-demand-40", fetch_us=110, first=41)
    record(
        tmp_path,
        CaptureRecord("slow-step-9", CaptureTrigger.SLOW_STEPS, 8, SLOW),
        CaptureRecord("on-demand-40", CaptureTrigger.FILE, 39),
    )
    slow, asked = analyze(tmp_path).captures
    assert any("as usual again" in sentence for sentence in slow.evidence)
    assert not any("as usual again" in sentence for sentence in asked.evidence)
    assert asked.evidence[0] == "Requested by the file profile-now at step 39."


def test_each_rank_is_compared_with_itself(tmp_path: Path) -> None:
    for rank, fetch_us in ((0, 100), (1, 1100)):
        trace(tmp_path, fetch_us=fetch_us, rank=rank)
        trace(tmp_path / "on-demand-40", fetch_us=fetch_us + 1000, first=41, rank=rank)
        record(tmp_path, CaptureRecord("on-demand-40", CaptureTrigger.FILE, 39), rank=rank)
    (capture,) = analyze(tmp_path).captures
    assert (capture.ranks, capture.rank) == ((0, 1), 1)
    assert capture.diff is not None
    assert capture.diff.step.change_ns == 1_000_000
    assert capture.distributed is not None
    assert capture.distributed.straggler is not None
    assert capture.evidence[-1].startswith("The most work is on rank 1: 1.00 ms per step more in waiting for")


def test_a_capture_without_a_window_to_compare_with(tmp_path: Path) -> None:
    trace(tmp_path / "slow-step-9", fetch_us=110, first=10)
    record(tmp_path, CaptureRecord("slow-step-9", CaptureTrigger.SLOW_STEPS, 8, SLOW))
    (tmp_path / "steps.rank0.jsonl").write_bytes(STEPS.encode(StepSample(0, 10, 1, None, 2, False)))
    report = analyze(tmp_path)
    assert report.ranks == ()
    (capture,) = report.captures
    assert capture.diff is None
    assert capture.recorded_steps == 2
    assert "no scheduled window" in capture.evidence[-1]


def test_a_capture_that_left_no_trace(tmp_path: Path) -> None:
    trace(tmp_path, fetch_us=100)
    record(tmp_path, CaptureRecord("slow-step-9", CaptureTrigger.SLOW_STEPS, 8, SLOW))
    (capture,) = analyze(tmp_path).captures
    assert (capture.rank, capture.recorded_steps, capture.diff) == (None, 0, None)
    assert "No whole step was captured" in capture.evidence[-1]


def test_damaged_files_are_notes(tmp_path: Path) -> None:
    trace(tmp_path, fetch_us=100)
    record(tmp_path, CaptureRecord("slow-step-9", CaptureTrigger.SLOW_STEPS, 8, SLOW))
    folder = tmp_path / "slow-step-9"
    folder.mkdir()
    (folder / "rank0.1700000000000000000.pt.trace.json").write_text("no trace")
    (tmp_path / "captures.rank1.jsonl").write_text("{}\n")
    (tmp_path / "steps.rank0.jsonl").write_bytes(STEPS.encode(StepSample(0, 10, 1, None, 2, False)))
    (tmp_path / "windows.rank0.jsonl").write_text("{}\n")
    notes = analyze(tmp_path).notes
    assert any(note.startswith("Captures of rank 1 are left out") for note in notes)
    assert any("Left out, unreadable" in note for note in notes)
    assert any(note.startswith("The profiler's cost is left out") for note in notes)


@pytest.mark.parametrize("folder", ["../elsewhere", "/etc", "", ".."])
def test_a_record_leads_nowhere_else(tmp_path: Path, folder: str) -> None:
    record(tmp_path, CaptureRecord(folder, CaptureTrigger.FILE, 1))
    captures, notes = captured(tmp_path, [])
    assert captures == ()
    assert "does not name a capture's folder" in notes[0]


def test_the_console_shows_trust_and_captures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace(tmp_path, fetch_us=100, first=30)
    trace(tmp_path / "slow-step-120", fetch_us=2100, first=121)
    record(tmp_path, CaptureRecord("slow-step-120", CaptureTrigger.SLOW_STEPS, 119, SLOW))
    times = [1_000_000 + 1000 * (step % 3 - 1) for step in range(100)]
    times[27:32] = [1_500_000] * 5
    (tmp_path / "steps.rank0.jsonl").write_bytes(
        b"".join(STEPS.encode(StepSample(step, time, 0, None, 2, 27 <= step < 32)) for step, time in enumerate(times))
    )
    (tmp_path / "windows.rank0.jsonl").write_bytes(WINDOWS.encode(RecordedWindow("", 27, 31, 2, 10**6, 2 * 10**6, 99)))
    analyze(tmp_path).print(width=400)
    text = capsys.readouterr().out
    assert "Trust 2 of 2 steps complete, no event lost." in text
    assert "Steps under the profiler took 1.50× (95 % CI 1.50× to 1.50×) the time of those before." in text
    assert "Afterwards the step time recovered: 1.00×" in text
    assert "The profiler cost 5.50 ms" in text
    assert "slow-step-120  slow steps" in text
    assert re.search(r"waiting for input +100 µs +2\.10 ms +\+2\.00 ms", text)
