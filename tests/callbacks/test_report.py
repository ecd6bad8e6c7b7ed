"""The report at the end of a fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from lightning_perf import PerfCallback, analyze
from lightning_perf.callbacks import report as fit_report
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.run_folder import FOLDER_MARKER
from tests.callbacks.training import (
    PACKAGES,
    failing,
    failing_step,
    hooked,
    loader,
    make_module,
    make_trainer,
    samples,
    step_marks,
    trace_files,
)


def quick(**options: Any) -> PerfCallback:
    return PerfCallback(**{"skip_first": 2, "warmup": 0, "active": 2, **options})


def saved(folder: Path) -> PerfReport:
    return PerfReport.load(folder / "perf" / "report.json")


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", PACKAGES)
def test_the_report_is_printed_and_saved(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(tmp_path, quick(report="full"), name).fit(make_module(name), loader(6))
    shown = capsys.readouterr().out
    assert shown.startswith("Where")
    assert shown.index("Where") < shown.index("Why") < shown.index("Next")
    report = saved(tmp_path)
    (rank,) = report.ranks
    assert [step.number for step in rank.breakdown.steps] == [2, 3]
    assert report.step_times is not None
    assert [Path(source).name for source in report.sources] == [file.name for file in trace_files(tmp_path)]
    assert [path.name for path in (tmp_path / "perf").glob(".*")] == [FOLDER_MARKER], "a half-written file was left"


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fit that prints nothing."""
    folder = tmp_path_factory.mktemp("quiet")
    make_trainer(folder, quick(report="none", repeat=2)).fit(make_module(), loader(8))
    return folder / "perf"


def test_the_report_is_that_of_the_folder_and_plain_json(quiet: Path) -> None:
    content = (quiet / "report.json").read_bytes()
    first, again = PerfReport.from_json(content), analyze(quiet)
    assert (again.ranks, again.step_times, again.verdict) == (first.ranks, first.step_times, first.verdict)
    assert json.loads(content)["schema_version"] >= 1


def test_recorded_steps_are_as_long_as_their_marks(quiet: Path) -> None:
    marks = [mark for file in trace_files(quiet) for mark in step_marks(file)]
    (rank,) = analyze(quiet).ranks
    assert len(marks) == 4
    for step, mark in zip(rank.breakdown.steps, marks, strict=True):
        assert step.wall_ns / 1000 == pytest.approx(mark.end - mark.start, abs=1)


def test_what_kept_steps_from_being_recorded_is_told_again_from_the_folder(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        make_trainer(tmp_path, quick(report="none")).fit(make_module(), loader(6))
    notes = saved(tmp_path).notes
    assert "another torch.profiler" in notes[0]
    assert analyze(tmp_path / "perf").notes == notes


def test_the_breakdown_reaches_the_loggers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = CSVLogger(tmp_path)
    make_trainer(tmp_path, quick(report="none"), logger=logger).fit(make_module(), loader(6))
    assert "Where" not in capsys.readouterr().out, "the report is not printed"
    header, *rows = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    values = dict(zip(header.split(","), rows[-1].split(","), strict=True))
    folder = Path(logger.log_dir) / "perf"
    (rank,) = PerfReport.from_json((folder / "report.json").read_bytes()).ranks
    step_ns, input_ns = rank.breakdown.wall.mean_ns, rank.breakdown.category("input").mean_ns
    assert step_ns is not None
    assert input_ns is not None
    assert float(values["perf/recorded/step_ms"]) == pytest.approx(step_ns / 1e6)
    assert float(values["perf/recorded/input_ms"]) == pytest.approx(input_ns / 1e6)
    assert "perf/recorded/device_compute_ms" not in values, "a row of a device that is not there"


def test_a_short_run_says_what_it_did_about_the_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(tmp_path, PerfCallback()).fit(make_module(), loader(4))
    shown = printed(capsys)
    assert "Shortened for a fit of 4 steps: skip_first=0 instead of 10, warmup=1 instead of 3." in shown
    assert "Recorded 3 of 5 steps: training ended after 4 steps, the schedule needs 6." in shown
    make_trainer(tmp_path, PerfCallback(skip_first=10)).fit(make_module(), loader(4))
    shown = printed(capsys)
    assert "Recorded 0 of 5 steps: training ended after 4 steps, the schedule needs 18." in shown
    assert "A step takes" in shown, "step times are known all the same"


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.filterwarnings("ignore:.*acc_events.*")
def test_lightnings_own_profiler_has_precedence_and_is_named(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(tmp_path, quick(), name, profiler="pytorch")
    trainer.fit(make_module(name), loader(6))
    assert 'Trainer(profiler="pytorch")' in printed(capsys)
    assert trace_files(tmp_path) == []
    assert len(samples(tmp_path)) == trainer.global_step == 6


def test_an_error_in_training_has_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = failing_step(ZeroDivisionError("training's own"), 3)
    with pytest.raises(ZeroDivisionError, match="training's own"):
        make_trainer(tmp_path, quick()).fit(make_module(training_step=step), loader(6))
    assert "A step takes" in printed(capsys)
    report = saved(tmp_path)
    assert [(step.number, step.complete) for step in report.ranks[0].breakdown.steps] == [(2, True), (3, False)]


def test_an_error_before_the_first_step_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        make_trainer(tmp_path, PerfCallback()).fit(make_module(on_train_start=failing(ZeroDivisionError())), loader(4))
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.rglob("report.json"))
    assert list(tmp_path.rglob("run.jsonl")), "the run record tells of the error"


def test_a_damaged_trace_costs_its_part_of_the_report(tmp_path: Path) -> None:
    damage = hooked(on_train_end=lambda *_: [file.write_bytes(b"{") for file in trace_files(tmp_path)])
    make_trainer(tmp_path, quick(report="none"), callbacks=[damage]).fit(make_module(), loader(6))
    report = saved(tmp_path)
    assert report.ranks == ()
    assert any("unreadable" in note for note in report.notes)


@pytest.mark.parametrize("function", ["build_fit_report", "write_report", "report_metrics", "print_fit_report"])
def test_a_fault_in_the_report_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], function: str
) -> None:
    assert hasattr(fit_report, function)
    broken = failing(RuntimeError("a fault of ours"))
    monkeypatch.setattr(f"lightning_perf.callbacks.report.{function}", broken)
    trainer = make_trainer(tmp_path, quick())
    with pytest.warns(RuntimeWarning, match="the report (could not be made|is not).*a fault of ours"):
        trainer.fit(make_module(), loader(6))
    assert trainer.state.finished
    assert ("A step takes" in capsys.readouterr().out) is (function in ("write_report", "report_metrics"))
    assert (tmp_path / "perf" / "report.json").exists() is (function in ("report_metrics", "print_fit_report"))


def test_without_a_folder_there_are_still_step_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.warns(RuntimeWarning, match="writable folder"):
        make_trainer(tmp_path, quick(dirpath=tmp_path / "file" / "perf")).fit(make_module(), loader(6))
    shown = printed(capsys)
    assert "A step takes" in shown
    assert "No step was recorded: there is no folder to write traces to." in shown


def test_step_times_that_could_not_be_saved_are_reported(tmp_path: Path) -> None:
    full = hooked(on_train_start=lambda *_: (tmp_path / "perf" / "steps.rank0.jsonl").mkdir())
    trainer = make_trainer(tmp_path, quick(report="none"), callbacks=[full])
    with pytest.warns(RuntimeWarning, match="step times are no longer saved"):
        trainer.fit(make_module(), loader(6))
    report = saved(tmp_path)
    assert report.step_times is not None
    assert report.step_times.steps + report.step_times.warmup_steps + report.step_times.profiled_steps == 6
    assert not any("left out" in note for note in report.notes)
