from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightning_perf.report.build import analyze
from lightning_perf.report.document import PerfReport
from lightning_perf.tensorboard.cache import find, key_of
from lightning_perf.tensorboard.discovery import Run, Sniffer, discover
from lightning_perf.tensorboard.logdirs import read_roots
from lightning_perf.tensorboard.make_report import make_report
from lightning_perf.tensorboard.task import Answer, Done, Failed, Task, Working, make_task
from lightning_perf.tensorboard.worker import READ_SHARE, work
from tests.tensorboard.support import write_trace

COMMAND = (sys.executable, "-m", "lightning_perf.tensorboard.worker")


def run_of(logdir: Path, name: str = "fit") -> Run:
    return discover(read_roots(str(logdir), None), Sniffer()).runs[name]


def task_of(logdir: Path, **changes: Any) -> Task:
    return msgspec.structs.replace(make_task(run_of(logdir), key_of(run_of(logdir))), **changes)


def test_a_real_worker_makes_the_report(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    run, task = run_of(logdir), task_of(logdir)
    worker = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/")
    with worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(msgspec.json.encode(task) + b"\n")
        worker.stdin.flush()
        answers = [msgspec.json.decode(line, type=Answer) for line in worker.stdout]
        worker.wait(60)  # it would end at once, were its standard input closed before
    assert answers[-1] == Done()
    assert worker.returncode == 0
    found = find(run, task.key, "report")
    assert found is not None
    assert found.read_bytes() == analyze(logdir / "fit").to_json(indent=None).encode()


def test_a_worker_ends_with_its_server(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    task = msgspec.json.encode(task_of(logdir)).decode()
    code = (
        "import lightning_perf.tensorboard.worker as w, time, sys, io\n"
        "w.work = lambda task, say: time.sleep(3600)\nw.serve()"
    )
    worker = subprocess.Popen(
        (sys.executable, "-c", code),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    worker.communicate(task + "\n", timeout=60)  # closes its standard input
    assert worker.returncode == -9


def test_a_worker_s_memory_is_bounded(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    task = msgspec.json.encode(task_of(logdir)).decode()
    code = (
        "import lightning_perf.tensorboard.worker as w, numpy\n"
        "import lightning_perf.tensorboard.memory_limit as m\n"
        "m.LEAST_MEMORY_BYTES, m.MEMORY_SHARE = 300 << 20, 0.0\n"
        "w.work = lambda task, say: numpy.ones(1 << 30, dtype='u1').sum() and None\nw.serve()"
    )
    worker = subprocess.Popen(
        (sys.executable, "-c", code), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(task + "\n")
        worker.stdin.flush()
        answer = json.loads(worker.stdout.readline())
    assert answer["state"] == "failed"
    assert "needs more than 0.3 GB" in answer["message"]
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
    from lightning_perf.compare.extras import MissingExtraError

    def fail(*_: Any) -> None:
        raise MissingExtraError("scipy", "compare")

    monkeypatch.setattr("lightning_perf.tensorboard.worker._report", fail)
    write_trace(logdir / "fit" / "a.pt.trace.json")
    assert work(task_of(logdir), lambda _: None) == Failed(
        'scipy is not installed. Install it with: pip install "lightning-perf[compare]"', lasting=False
    )
