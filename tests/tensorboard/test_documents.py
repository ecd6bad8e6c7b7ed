"""Reports of runs and comparisons of studies: the same as those of the commands, and how far they are."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from lightning_perf.errors import ReportError
from lightning_perf.lazy_imports import MissingExtraError
from lightning_perf.project import install_command
from lightning_perf.report.build import analyze, build_report
from lightning_perf.report.document import PerfReport
from lightning_perf.tensorboard.cache import key_of, make_task
from lightning_perf.tensorboard.documents import READ_SHARE, ReadingProgress, make_document, make_report
from lightning_perf.tensorboard.jobs import Answer, Done, Failed, Working
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


def test_progress_of_reading(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/proc/self/fdinfo").exists():
        pytest.skip("needs /proc")
    monkeypatch.setattr("lightning_perf.tensorboard.documents.LOOK_S", 0.001)
    write_trace(logdir / "fit" / "a.pt.trace.json", kernels=3000)
    said: list[Answer] = []

    def told() -> list[float]:
        return [answer.done for answer in said if isinstance(answer, Working)]

    def in_two_parts(folder: Path, traces: list[Path], place: str) -> PerfReport:
        half = traces[0].stat().st_size // 2
        with traces[0].open("rb", buffering=0) as file:
            for part in (0.5, 1.0):
                file.read(half + 1)
                deadline = time.monotonic() + 30
                while max(told(), default=0.0) < part * READ_SHARE and time.monotonic() < deadline:
                    time.sleep(0.001)
        return make_report(folder, traces, place)

    monkeypatch.setattr("lightning_perf.tensorboard.documents.make_report", in_two_parts)
    run = run_of(logdir)
    assert make_document(make_task(run, key_of(run)), said.append) == Done()
    parts = told()
    assert parts == sorted(parts)
    assert any(part == pytest.approx(READ_SHARE / 2, rel=0.01) for part in parts)
    assert parts[-1] == READ_SHARE
    assert {answer.message for answer in said if isinstance(answer, Working)} == {"reading traces", "analyzing"}


needs_proc = pytest.mark.skipif(not Path("/proc/self/fdinfo").exists(), reason="needs /proc")


@needs_proc
def test_follows_reading_in_this_process(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x" * 100)
    progress = ReadingProgress({str(tmp_path / name): 100 for name in ("a", "b")})
    assert progress.look() == 0.0
    with (tmp_path / "a").open("rb", buffering=0) as first:
        first.read(50)
        assert progress.look() == 0.25
        first.read()
        assert progress.look() == 0.5
    assert progress.look() == 0.5  # closed files stay read
    assert ReadingProgress({}).look() == 1.0  # nothing to read
    with (tmp_path / "b").open("rb", buffering=0) as second:
        second.read()
        assert progress.look() == 1.0
        second.seek(0)
        assert progress.look() == 1.0


@needs_proc
def test_follows_reading_in_a_child(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100)
    progress = ReadingProgress({str(path): 100})
    code = f"f = open({str(path)!r}, 'rb', 0); f.read(80); print('read', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "read\n"
        assert progress.look() == 0.8
        child.stdin.write("\n")
