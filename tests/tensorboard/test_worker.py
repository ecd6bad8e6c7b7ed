from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightning_perf.project import install_command
from lightning_perf.report.build import analyze
from lightning_perf.report.document import PerfReport
from lightning_perf.tensorboard.cache import find, key_of
from lightning_perf.tensorboard.discovery import Run, Sniffer, discover, read_roots
from lightning_perf.tensorboard.make_report import make_report
from lightning_perf.tensorboard.task import Answer, Done, Failed, Task, Working, make_task
from lightning_perf.tensorboard.worker import READ_SHARE, ReadingProgress, work
from lightning_perf.workers.process import WorkerProcess
from tests.tensorboard.support import write_trace

WORKER = "lightning_perf.tensorboard.worker:main"


def run_of(logdir: Path, name: str = "fit") -> Run:
    return discover(read_roots(str(logdir), None), Sniffer()).runs[name]


def task_of(logdir: Path, **changes: Any) -> Task:
    return msgspec.structs.replace(make_task(run_of(logdir), key_of(run_of(logdir))), **changes)


def test_a_real_worker_makes_the_report(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    run, task = run_of(logdir), task_of(logdir)
    answers: list[Answer] = []
    with WorkerProcess(WORKER, task, folder="/") as worker:
        while not answers or isinstance(answers[-1], Working):
            answers.append(worker.receive(Working, Done, Failed, timeout_s=60))
    assert answers[-1] == Done()
    assert worker.exit_code == 0
    found = find(run, task.key, "report")
    assert found is not None
    assert found.read_bytes() == analyze(logdir / "fit").to_json(indent=None).encode()


def test_a_worker_s_memory_is_limited(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    with WorkerProcess("tests.tensorboard.scripted_workers:hungry", task_of(logdir)) as worker:
        answer = worker.receive(Failed, timeout_s=60)
    assert "needs more than 0.3 GB" in answer.message
    assert not answer.lasting
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] != 300 << 20  # of this process


def test_tells_how_far_reading_is(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/proc/self/fdinfo").exists():
        pytest.skip("needs /proc")
    monkeypatch.setattr("lightning_perf.tensorboard.worker.LOOK_S", 0.001)
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

    monkeypatch.setattr("lightning_perf.tensorboard.make_report.make_report", in_two_parts)
    assert work(task_of(logdir), said.append) == Done()
    parts = told()
    assert parts == sorted(parts)
    assert any(part == pytest.approx(READ_SHARE / 2, rel=0.01) for part in parts)
    assert parts[-1] == READ_SHARE
    assert {answer.message for answer in said if isinstance(answer, Working)} == {"reading traces", "analyzing"}


def test_an_unwritable_cache_is_a_passing_failure(logdir: Path, tmp_path: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    (tmp_path / "file").write_text("")
    answer = work(task_of(logdir, places=(str(tmp_path / "file" / "x"),)), lambda _: None)
    assert isinstance(answer, Failed)
    assert not answer.lasting
    assert "LIGHTNING_PERF_CACHE" in answer.message


def test_a_missing_extra_is_a_passing_failure(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_perf.lazy_imports import MissingExtraError

    def fail(*_: Any) -> None:
        raise MissingExtraError("scipy", "compare")

    monkeypatch.setattr("lightning_perf.tensorboard.make_report.make_report", fail)
    write_trace(logdir / "fit" / "a.pt.trace.json")
    assert work(task_of(logdir), lambda _: None) == Failed(
        f"scipy is not installed. Install it with: {install_command('compare')}", lasting=False
    )


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


@needs_proc
def test_nothing_to_read_is_all_read() -> None:
    assert ReadingProgress({}).look() == 1.0
