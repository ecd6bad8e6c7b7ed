"""Reports of runs and comparisons of studies: the same as those of the commands, and how far they are."""

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightning_perf.errors import ReportError
from lightning_perf.lazy_imports import MissingExtraError, install_command
from lightning_perf.report.build import analyze, build_report
from lightning_perf.tensorboard.cache import BESIDE, find, key_of, make_task
from lightning_perf.tensorboard.discovery import Run
from lightning_perf.tensorboard.documents import fetch, make_document, make_report
from lightning_perf.tensorboard.queue import Answer, Done, Failed, Queue, Working
from lightning_perf.tensorboard.storage import Storage, StorageError
from lightning_perf.workers.process import WorkerProcess
from tests.support.processes import until
from tests.tensorboard.support import asker, run_of, stored, write_study, write_trace


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


def test_a_real_worker_makes_a_report_and_ends(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json", kernels=3)
    run = run_of(logdir)
    key = key_of(run)
    answers: list[Answer] = []
    with WorkerProcess("lightning_perf.tensorboard.documents:main", make_task(run, key), folder="/") as worker:
        while not answers or isinstance(answers[-1], Working):
            answers.append(worker.receive(Working, Done, Failed, timeout_s=60))
        assert answers[-1] == Done()
        report = find(run, key, "report")
        assert report is not None
        assert report.read_bytes() == analyze(logdir / "fit").to_json(indent=None).encode()
    assert worker.exit_code == 0


def test_a_worker_s_memory_is_limited(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    task = make_task(run_of(logdir), "k")
    with WorkerProcess("tests.tensorboard.scripted_workers:hungry", task) as worker:
        answer = worker.receive(Failed, timeout_s=60)
        assert "The analysis needs more than 0.3 GB" in answer.message
        assert answer.may_pass
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] != 300 << 20  # of this process


def test_a_diff_comes_through_the_queue(logdir: Path) -> None:
    for name, kernel_us in (("a", 40), ("b", 60)):
        write_trace(logdir / name / "x.pt.trace.json", kernel_us=kernel_us, kernels=3)
    compared = analyze(logdir / "a").diff(analyze(logdir / "b"))
    tab = asker(logdir, Queue())
    answers = []
    until(lambda: answers.append(tab.get("data/diff", run="a", other="b")) or answers[-1].status_code != 202)
    rows = answers[-1].json["parts"]["diff_kernels"][-1]["rows"]  # type: ignore[index]
    assert sum(row[3]["value"] for row in rows) == compared.diff.kernels.change_ns  # type: ignore[union-attr]


@pytest.mark.parametrize("damage", [b"", b"{", b"{}"])
def test_a_damaged_report_is_made_again(logdir: Path, damage: bytes) -> None:
    for name in ("a", "b"):
        write_trace(logdir / name / "x.pt.trace.json")
    tab = asker(logdir)
    answer = tab.json("data/diff", run="b", other="a")
    (path,) = (logdir / "a" / BESIDE).glob("*.report")
    whole = path.read_bytes()
    path.write_bytes(damage)
    assert tab.json("data/diff", run="b", other="a") == answer
    assert path.read_bytes() == whole


fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install fsspec")


@pytest.fixture
def memory() -> Iterator[Any]:
    file_system = fsspec.filesystem("memory")
    file_system.pipe("/bucket/fit/rank0.1.pt.trace.json", b"x" * 100)
    file_system.pipe("/bucket/fit/rank1.1.pt.trace.json", b"y" * 300)
    yield file_system
    file_system.rm("/bucket", recursive=True)


def run(*versions: str) -> Run:
    files = tuple(
        stored(f"fit/rank{rank}.1.pt.trace.json", (100, 300)[rank], version=version)
        for rank, version in enumerate(versions)
    )
    return Run("fit", "trace", Storage("memory://bucket"), "fit", files, ())


def quiet(done: float, message: str) -> None:
    """Hear of the progress."""


def test_copies_files_once_and_tells_how_far_it_is(memory: Any, tmp_path: Path) -> None:
    told: list[tuple[float, str]] = []
    paths = fetch(run("v1", "v1"), tmp_path, lambda *step: told.append(step))
    assert [path.name for path in paths] == ["rank0.1.pt.trace.json", "rank1.1.pt.trace.json"]
    assert [path.read_bytes() for path in paths] == [b"x" * 100, b"y" * 300]
    assert [done for done, _ in told] == [0.25, 1.0]
    assert told[1][1] == "fetching file 2 of 2, 0 MB in total"
    told.clear()
    assert fetch(run("v1", "v1"), tmp_path, lambda *step: told.append(step)) == paths
    assert told == []


def test_a_new_version_is_fetched_anew(memory: Any, tmp_path: Path) -> None:
    old = fetch(run("v1"), tmp_path, quiet)
    memory.pipe("/bucket/fit/rank0.1.pt.trace.json", b"z" * 100)
    (new,) = fetch(run("v2"), tmp_path, quiet)
    assert [new] != old
    assert new.read_bytes() == b"z" * 100


def test_a_file_that_changes_meanwhile_leaves_nothing(memory: Any, tmp_path: Path) -> None:
    memory.pipe("/bucket/fit/rank0.1.pt.trace.json", b"longer" * 100)
    with pytest.raises(StorageError, match="changed while it was fetched"):
        fetch(run("v1"), tmp_path, quiet)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_old_files_make_room(memory: Any, tmp_path: Path) -> None:
    for version in ("v1", "v2", "v3", "v4"):
        fetch(run(version), tmp_path, quiet, most_bytes=250)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2


def test_a_run_that_does_not_fit_is_refused(memory: Any, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"room for .* Free some space, set LIGHTNING_PERF_CACHE to another folder"):
        fetch(run("v1", "v1"), tmp_path, quiet, most_bytes=250)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_local_files_stay_where_they_are(logdir: Path, tmp_path: Path) -> None:
    local = Run("fit", "run", Storage(str(logdir)), "fit", (stored("fit/a.json"),), ())
    assert fetch(local, tmp_path, quiet) == [logdir / "fit" / "a.json"]
