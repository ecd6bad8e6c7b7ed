"""A real worker process, its memory, and its comparisons."""

import resource
from pathlib import Path

import pytest

from lightning_perf.report.build import analyze
from lightning_perf.tensorboard.cache import BESIDE, find, key_of, make_task
from lightning_perf.tensorboard.jobs import Answer, Damaged, DiffQuery, Done, Failed, Working
from lightning_perf.tensorboard.queue import Queue
from lightning_perf.tensorboard.worker import work
from lightning_perf.workers.process import WorkerProcess
from tests.support.processes import until
from tests.tensorboard.support import asker, run_of, write_trace


def test_a_real_worker_makes_a_report_and_ends(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json", kernels=3)
    run = run_of(logdir)
    key = key_of(run)
    answers: list[Answer] = []
    with WorkerProcess("lightning_perf.tensorboard.worker:main", make_task(run, key), folder="/") as worker:
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


def test_a_missing_report_is_damaged() -> None:
    assert work(DiffQuery("/nowhere", "/nowhere"), lambda _: None) == Damaged("/nowhere")
