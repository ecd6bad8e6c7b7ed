import json
from pathlib import Path

import pytest

import lightning_perf
from lightning_perf.errors import TraceError
from lightning_perf.report.build import build_report
from lightning_perf.report.document import PerfReport
from lightning_perf.report.sections.page import report_parts
from lightning_perf.run_files.fit.memory_growth import GrowthRecord, MemorySample, WorkerGrowth, write_growth
from lightning_perf.run_files.steps import STEPS, StepSample
from lightning_perf.show.blocks import Figures
from lightning_perf.trace.description import PROCESSOR_KEY, STOPPED_KEY
from lightning_perf.units import format_share
from tests.findings.recordings import reducing
from tests.report.support import rendered
from tests.support.known import known
from tests.support.trace_builder import TraceBuilder


def recording(rank: int | None = None, world: int = 1, at_us: int = 0, kernel_us: int = 40) -> TraceBuilder:
    builder = TraceBuilder() if rank is None else TraceBuilder().rank(rank, world)
    for number in range(2):
        start = at_us + 100 * number
        builder.step(number + at_us, start, 100).op("aten::mm", start + 5, 30)
        builder.launch("gemm", call_us=start + 10, call_duration_us=5, start_us=start + 20, duration_us=kernel_us)
    return builder


def test_one_file(tmp_path: Path) -> None:
    path = recording().write(tmp_path / "trace.json")
    report = lightning_perf.analyze(path)
    assert report.sources == (str(path),)
    assert report.lead == 0
    assert report.ranks[0].breakdown.wall.mean_ns == 100_000
    assert report.ranks[0].breakdown.category("device_compute").mean_ns == 40_000
    assert report.notes == ()


def test_windows_of_a_rank_are_analysed_together(tmp_path: Path) -> None:
    recording(0, 1).write(tmp_path / "rank0.1000000001.pt.trace.json.gz")
    recording(0, 1, at_us=10_000).write(tmp_path / "rank0.1000000002.pt.trace.json.gz")
    report = lightning_perf.analyze(tmp_path)
    (rank,) = report.ranks
    assert [step.number for step in rank.breakdown.steps] == [0, 1, 10_000, 10_001]
    assert len(report.sources) == 2


def test_files_that_overlap_in_time_are_no_windows_of_one_process(tmp_path: Path) -> None:
    recording(0, 1).write(tmp_path / "rank0.1000000001.pt.trace.json")
    recording(0, 1, at_us=50).write(tmp_path / "rank0.1000000002.pt.trace.json")
    report = lightning_perf.analyze(tmp_path)
    assert len(report.ranks) == 2
    assert any("2 recordings say that they are rank 0" in note for note in report.notes)


def test_missing_ranks_are_said_and_the_slowest_rank_leads(tmp_path: Path) -> None:
    recording(0, 4).write(tmp_path / "rank0.pt.trace.json")
    recording(2, 4, kernel_us=85).write(tmp_path / "rank2.pt.trace.json")
    report = lightning_perf.analyze(tmp_path)
    assert [rank.rank for rank in report.ranks] == [0, 2]
    assert report.lead == 1  # its kernels end 5 µs after the host's mark
    assert "The run has 4 ranks, but 2 ranks left no trace: 1, 3." in report.notes
    (tmp_path / "rank2.pt.trace.json").unlink()
    recording(0, 16).write(tmp_path / "rank0.pt.trace.json")
    (note,) = lightning_perf.analyze(tmp_path).notes
    assert note == "The run has 16 ranks, but 15 ranks left no trace: 1, 2, 3, 4, 5, 6, 7, 8 and 7 more."


def test_a_recording_without_a_rank_beside_an_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "rank1.pt.trace.json").write_bytes(b"not json")
    with pytest.raises(TraceError, match=r"rank1\.pt\.trace\.json"):
        lightning_perf.analyze(tmp_path)
    recording().write(tmp_path / "rank7.pt.trace.json")
    report = lightning_perf.analyze(tmp_path)
    assert [rank.rank for rank in report.ranks] == [7]  # as its file name says
    assert any("rank1.pt.trace.json" in note for note in report.notes)


def test_the_rank_that_others_wait_for_leads(tmp_path: Path) -> None:
    reducing(100, rank=0, compute_us=1400).write(tmp_path / "rank0.pt.trace.json")
    reducing(901, rank=1, compute_us=600).write(tmp_path / "rank1.pt.trace.json")  # its steps are 1 µs longer
    report = lightning_perf.analyze(tmp_path)
    assert report.distributed is not None
    assert report.distributed.straggler is not None
    assert report.lead == 0
    assert "The others wait for rank 0" in rendered(report)


def test_step_times_alone_make_a_report() -> None:
    samples = [StepSample(step, 100_000_000, 25_000_000, None, 32, False) for step in range(30)]
    report = build_report([], samples=samples, notes=["The fit had fewer steps than the schedule."])
    assert report.lead is None
    assert "100 ms (median of 25, 320 samples/s), 25.0 %" in report.verdict.where
    assert report.notes == ("The fit had fewer steps than the schedule.",)
    assert PerfReport.from_json(report.to_json()) == report


def test_step_times_are_read_with_or_without_traces_beside_them(tmp_path: Path) -> None:
    samples = [StepSample(step, 2_000_000, 500_000, None, 8, False) for step in range(10)]
    (tmp_path / "steps.rank0.jsonl").write_bytes(STEPS.encode(*samples))
    (tmp_path / "report.json").write_text("{}")
    report = lightning_perf.analyze(tmp_path)
    assert report.ranks == ()
    assert report.verdict.where.startswith("A step takes 2.00 ms (median of")
    recording(0, 1).write(tmp_path / "rank0.pt.trace.json")
    report = lightning_perf.analyze(tmp_path)
    assert len(report.ranks) == 1
    assert report.step_times is not None
    assert report.step_times.p50_ns == 2_000_000


def test_the_time_of_workers_is_known_in_a_fit_that_is_too_short_for_its_memory(tmp_path: Path) -> None:
    trace = reducing(250)
    trace.top_level[PROCESSOR_KEY] = {"cores": 8, "worker_cpu": 0.9}
    trace.write(tmp_path / "rank0.1000000001.pt.trace.json.gz")
    worker = WorkerGrowth(4, 0, 32, 0, 0, 0, 0, cpu=0.2, core_wait=0.3, disk_wait=0.0)
    write_growth(tmp_path, GrowthRecord(0, "allocator", (MemorySample(20, 1), MemorySample(36, 1)), (), worker))
    report = lightning_perf.analyze(tmp_path)
    assert report.memory_growth is None
    (rank,) = report.ranks
    assert rank.worker == worker
    assert rank.metadata.processor is not None
    assert (rank.metadata.processor.worker_cpu, rank.metadata.processor.worker_wait) == (0.2, 0.3)


@pytest.mark.parametrize(("step_us", "fills"), [(420, True), (600, False)])
def test_mfu_and_the_work_of_the_device_in_steps_without_the_profiler(
    tmp_path: Path, step_us: int, fills: bool
) -> None:
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", computeMajor=8, numSms=108, totalGlobalMem=40 * 10**9)
    for at in builder.steps(5, 1000):
        builder.op("aten::mm", at + 10, 100, types=["c10::BFloat16"] * 2, dims=[[1024, 1024]] * 2)
        builder.launch(
            "ampere_bf16_s16816gemm_bf16_64x64", call_us=at + 50, call_duration_us=5, start_us=at + 60, duration_us=400
        )
    builder.write(tmp_path / "rank0.1.pt.trace.json")
    times = [StepSample(step, 1000 * step_us, 0, None, 8, False) for step in range(30)]
    (tmp_path / "steps.rank0.jsonl").write_bytes(STEPS.encode(*times))
    report = lightning_perf.analyze(tmp_path)
    assert known(report.step_times).mfu == pytest.approx(2 * 1024**3 / 312e12 / (step_us * 1e-6))
    (figures,) = (block for block in report_parts(report)["summary.0"] if isinstance(block, Figures))
    shown = {figure.label: figure.text for figure in figures.figures}
    assert shown["MFU"] == format_share(known(report.step_times).mfu)
    assert any("of a step: only less work on the device" in note for note in report.notes) is fills


def test_truncated_recordings_get_no_shares(tmp_path: Path) -> None:
    path = recording().write(tmp_path / "trace.json")
    whole = path.read_text()
    path.write_text(whole[: len(whole) - 400])
    report = lightning_perf.analyze(path)
    assert report.ranks[0].problems.truncated
    assert "%" not in "".join((report.verdict.where, report.verdict.why, report.verdict.next))
    assert "ends early" in report.verdict.why
    assert report.findings == ()


def test_a_recording_whose_buffer_was_full_gets_no_shares_and_says_why(tmp_path: Path) -> None:
    builder = recording()
    builder.top_level[STOPPED_KEY] = True
    report = lightning_perf.analyze(builder.write(tmp_path / "trace.json"))
    assert "%" not in "".join((report.verdict.where, report.verdict.why, report.verdict.next))
    assert "buffer" in report.verdict.why
    assert "active=1" in report.verdict.next
    assert report.findings == ()
    assert any("ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB" in note for note in report.notes)


def test_a_recording_without_step_marks_says_so(tmp_path: Path) -> None:
    path = TraceBuilder().op("aten::mm", 0, 100).write(tmp_path / "trace.json")
    report = lightning_perf.analyze(path)
    assert "The whole recording takes 100 µs (it marks no steps)" in report.verdict.where
    assert any("marks no steps" in note for note in report.notes)


def test_a_recording_of_the_host_alone_has_no_word_of_a_device_in_its_shares(tmp_path: Path) -> None:
    path = TraceBuilder().step(1, 0, 100).op("aten::mm", 0, 90).write(tmp_path / "trace.json")
    report = lightning_perf.analyze(path)
    assert report.ranks[0].arithmetic is None
    assert report.ranks[0].breakdown.category("device_compute").mean_ns is None
    assert "GPU" not in json.dumps(json.loads(report.to_json())["verdict"])
    assert "device" not in report.verdict.where


def test_calls_to_a_device_without_its_work_are_not_a_recording_of_the_host_alone(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for number in range(2):
        builder.step(number, 100 * number, 100).op("aten::mm", 100 * number + 5, 30)
        builder.runtime("cudaLaunchKernel", 100 * number + 10, 5)
    report = lightning_perf.analyze(builder.write(tmp_path / "trace.json"))
    assert any("calls to a device but no device work" in note for note in report.notes)
    assert not any("the host alone" in note.split("The figures")[0] for note in report.notes)


def test_clocks_that_disagree_are_said(tmp_path: Path) -> None:
    builder = recording()
    assert not any("clocks" in note for note in build_report([builder.write(tmp_path / "sound.json")]).notes)
    builder.launch("early", call_us=150, call_duration_us=5, start_us=120, duration_us=4)
    (note,) = build_report([builder.write(tmp_path / "skewed.json")]).notes
    assert note.startswith("skewed.json: 33.3 % of the device's work begins before the call that launched it, by up to")
    assert "30.0 µs. The clocks" in note
