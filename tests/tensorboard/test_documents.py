"""Reports of runs and comparisons of studies: the same as those of the commands, and how far they are."""

import shutil
from pathlib import Path

import msgspec
import pytest

from lightning_perf.errors import ReportError
from lightning_perf.lazy_imports import MissingExtraError, install_command
from lightning_perf.report.build import analyze, build_report
from lightning_perf.tensorboard.cache import make_task
from lightning_perf.tensorboard.documents import make_document, make_report
from lightning_perf.tensorboard.queue import Failed
from tests.tensorboard.support import run_of, write_study, write_trace


def test_equals_what_the_command_says_of_real_traces(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(corpus / "traces" / "kineto" / "resnet50_num_workers_0", folder)
    traces = sorted(folder.iterdir())
    ours, theirs = make_report(folder, traces, str(folder)), analyze(folder)
    assert ours.to_json() == theirs.to_json()


def test_a_finished_report_is_used_if_this_version_made_it_of_all_traces(tmp_path: Path) -> None:
    first, path = write_trace(tmp_path / "rank0.1.pt.trace.json"), tmp_path / "report.json"
    data = build_report([first], notes=["said by the callback"]).to_json(indent=None).encode()
    path.write_bytes(data)
    assert "said by the callback" in make_report(tmp_path, [first], str(tmp_path)).notes
    path.write_bytes(data.replace(b'"tool_version":"', b'"tool_version":"0.0.'))
    assert "said by the callback" not in make_report(tmp_path, [first], str(tmp_path)).notes
    assert "said by the callback" in make_report(tmp_path, [], str(tmp_path)).notes  # there is nothing else
    path.write_bytes(data)
    second = write_trace(tmp_path / "rank1.1.pt.trace.json", kernel_us=50)
    report = make_report(tmp_path, [first, second], str(tmp_path))
    assert "said by the callback" not in report.notes
    assert len(report.sources) == 2


def test_a_report_of_another_schema_says_so_where_there_is_nothing_else(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "rank0.1.pt.trace.json")
    path = tmp_path / "report.json"
    path.write_text('{"schema_version": 999}')
    assert make_report(tmp_path, [trace], str(tmp_path)).sources == (str(trace),)
    with pytest.raises(ReportError, match="schema version 999"):
        make_report(tmp_path, [], str(tmp_path))


def test_files_are_called_by_where_they_were_found(tmp_path: Path) -> None:
    good = write_trace(tmp_path / "rank0.1.pt.trace.json")
    bad = tmp_path / "rank1.1.pt.trace.json"
    bad.write_text("nothing")
    report = make_report(tmp_path, [good, bad], "s3://b")
    assert report.sources == report.ranks[0].sources == ("s3://b/rank0.1.pt.trace.json",)
    assert any("s3://b/rank1.1.pt.trace.json" in note for note in report.notes)
    assert str(tmp_path) not in report.to_json()


def test_an_unwritable_cache_is_a_passing_failure(logdir: Path, tmp_path: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    (tmp_path / "file").write_text("")
    task = make_task(run_of(logdir), "k")
    answer = make_document(msgspec.structs.replace(task, places=(str(tmp_path / "file" / "x"),)), lambda _: None)
    assert isinstance(answer, Failed)
    assert answer.may_pass
    assert "LIGHTNING_PERF_CACHE" in answer.message


def test_a_missing_extra_is_a_passing_failure(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        raise MissingExtraError("scipy", "compare")

    write_study(logdir / "amp")
    monkeypatch.setattr("lightning_perf.tensorboard.documents.compare_runs", fail)
    answer = make_document(make_task(run_of(logdir, "amp"), "k"), lambda _: None)
    assert answer == Failed(f"scipy is not installed. Install it with: {install_command('compare')}", 500)
