import io
from pathlib import Path

import pytest
from msgspec.structs import replace

import lightning_perf
from lightning_perf.analysis.diff import DiffTable
from lightning_perf.analysis.steps.step_times import summarize_step_times
from lightning_perf.cli import main
from lightning_perf.report.document import PerfReport
from lightning_perf.report.sections.diff import changes_table
from lightning_perf.run_files.steps import StepSample
from tests.support.shown import console_text
from tests.support.trace_builder import TraceBuilder


def recording(kernel_us: int, extra: str) -> TraceBuilder:
    return (
        TraceBuilder()
        .step(1, 0, 200)
        .op("aten::mm", 5, 30)
        .launch("gemm", call_us=10, call_duration_us=5, start_us=20, duration_us=kernel_us)
        .launch(extra, call_us=20, call_duration_us=5, start_us=150, duration_us=10)
    )


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    before = recording(100, "[red]old\x1b[31m").write(tmp_path / "before.json")
    return before, recording(40, "new").write(tmp_path / "after.json")


def test_changes_are_the_differences(paths: tuple[Path, Path]) -> None:
    before, after = map(lightning_perf.analyze, paths)
    compared = before.diff(after)
    compute = next(row for row in compared.diff.categories.rows if row.name == "device_compute")
    assert (compute.before_ns, compute.after_ns, compute.verdict) == (110_000, 50_000, "faster")
    assert compared.diff.kernels is not None
    verdicts = {row.name: row.verdict for row in compared.diff.kernels.rows}
    assert verdicts == {"gemm": "faster", "[red]old\x1b[31m": "vanished", "new": "appeared"}


def test_medians_without_the_profiler_lead_if_both_runs_have_them(paths: tuple[Path, Path]) -> None:
    def timed(path: Path, step_us: int) -> PerfReport:
        samples = [StepSample(step, 1000 * step_us, 0, None, None, False) for step in range(30)]
        return replace(lightning_perf.analyze(path), step_times=summarize_step_times(samples))

    before, after = timed(paths[0], 180), timed(paths[1], 90)
    compared = before.diff(after)
    assert (compared.step.before_ns, compared.step.after_ns, compared.step.verdict) == (180_000, 90_000, "faster")
    text = " ".join(console_text(compared.blocks()).split())
    assert text.startswith("A step took 180 µs and takes 90.0 µs (median, 0.500×): faster The step time is without the")
    assert "means of 1 and 1 recorded step." in text
    recorded = before.diff(lightning_perf.analyze(paths[1]))
    assert (recorded.usual_step, recorded.step) == (None, recorded.diff.step)
    assert "takes 200 µs (mean, 1.00×): same" in console_text(recorded.blocks())


def test_small_changes_are_not_coloured(paths: tuple[Path, Path]) -> None:
    compared = lightning_perf.analyze(paths[0]).diff(lightning_perf.analyze(paths[1]))
    assert compared.diff.kernels is not None
    for share, style in ((0.009, "quiet"), (0.011, "bad")):
        row = replace(compared.diff.kernels.rows[0], change_ns=share * 1000.0, verdict="slower")
        table = changes_table(DiffTable(1000.0, 1000.0 + row.change_ns, row.change_ns, (row,)), "kernel")
        assert (table.rows[0][-1].text, table.rows[0][-1].style) == ("slower", style)


def test_notes_say_whose_they_are(paths: tuple[Path, Path]) -> None:
    before, after = (replace(lightning_perf.analyze(path), notes=(path.name, "both")) for path in paths)
    compared = before.diff(after)
    assert compared.notes == ("Before: before.json", "both", "After: after.json")
    assert (compared.schema_version, compared.tool_version) == (1, lightning_perf.__version__)


def test_prediction_of_mixed_precision_stands_beside_what_came_of_it(tmp_path: Path) -> None:
    def run(kernel: str, dtype: str, kernel_us: int) -> Path:
        builder = TraceBuilder().step(1, 0, 100 + kernel_us).op("aten::mm", 5, 30, types=[dtype], dims=[[64, 64]])
        builder.launch(kernel, call_us=10, call_duration_us=5, start_us=20, duration_us=kernel_us)
        return builder.write(tmp_path / f"{kernel}.json")

    plain = lightning_perf.analyze(run("volta_sgemm_128x64_nn", "float", 900))
    mixed = lightning_perf.analyze(run("volta_fp16_s884gemm_fp16_128x64", "c10::Half", 300))
    check = plain.diff(mixed).mixed_precision
    assert check is not None
    assert (check.measured, check.held) == (pytest.approx(1000 / 400), True)
    file = io.StringIO()
    plain.diff(mixed).print(file=file, width=120)
    assert "Mixed precision was predicted to be" in file.getvalue()
    assert "It is 2.50×: as predicted." in file.getvalue()
    assert plain.diff(plain).mixed_precision is None
    assert mixed.diff(plain).mixed_precision is None


@pytest.mark.parametrize("width", [80, 120])
def test_console_fits_and_is_inert(paths: tuple[Path, Path], width: int) -> None:
    file = io.StringIO()
    before, after = map(lightning_perf.analyze, paths)
    before.diff(after).print(file=file, width=width)
    text = file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "device compute" in text
    assert "−60.0 µs" in text
    assert "\x1b" not in text
    assert r"[red]old\x1b[31m" in text


def test_a_whole_recording_is_not_called_a_step(paths: tuple[Path, Path]) -> None:
    marked, other = map(lightning_perf.analyze, paths)
    (rank,) = other.ranks
    whole = replace(other, ranks=(replace(rank, breakdown=replace(rank.breakdown, marked=False)),))
    assert marked.diff(marked).headline == "A step took 200 µs and takes 200 µs"
    assert whole.diff(whole).headline == "The whole recording took 200 µs and takes 200 µs"
    assert marked.diff(whole).headline == "A step took 200 µs, the whole recording takes 200 µs"


def test_a_truncated_recording_is_refused(paths: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    text = paths[0].read_text()
    paths[0].write_text(text[: len(text) - 200])
    assert main(["diff", *map(str, paths)]) == 2
    assert "before.json: ends early" in capsys.readouterr().err
