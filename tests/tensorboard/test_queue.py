"""Jobs in worker processes: each once, with progress, and without harm if a worker dies or its reader leaves."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightning_perf.tensorboard.discovery import Run
from lightning_perf.tensorboard.queue import SMALL_BYTES, Answer, DiffQuery, Done, Failed, Job, Queue, Task, Working
from lightning_perf.tensorboard.storage import Storage
from tests.support.processes import dies, until
from tests.tensorboard.support import stored


def task(key: str = "k", folder: str | None = None, size_bytes: int = 1) -> Task:
    """A task; each key is that of another run where no folder is given."""
    folder = folder or f"run-{key}"
    files = (stored(f"{folder}/a.json", size_bytes),)
    return Task(Run(folder, "run", Storage("/logs"), folder, files, ()), key, ("/nowhere",), "/nowhere")


class Scripted(Queue):
    """A queue whose worker process runs a piece of Python for each task (see `scripted_workers`)."""

    def __init__(self, code: str = "", **times: float) -> None:
        super().__init__("tests.tensorboard.scripted_workers:main", **times)
        self._code = code

    def ask(self, job: Job) -> Answer:
        return super().ask(msgspec.structs.replace(job, fetched=self._code) if isinstance(job, Task) else job)


def query(code: str) -> DiffQuery:
    """A comparison, in place of which the scripted worker runs a text."""
    return DiffQuery(code, "/nowhere")


def ending(queue: Queue, job: Job) -> Answer:
    """The last answer."""
    answers: list[Answer] = []

    def over() -> bool:
        answers.append(queue.ask(job))
        return not isinstance(answers[-1], Working)

    until(over)
    return answers[-1]


def process(queue: Queue, job: Job) -> int:
    """The ID of the process that did a job."""
    answer = ending(queue, job)
    assert isinstance(answer, Done)
    return int(answer.data)


def blocking(folder: Path, *keys: str, **times: float) -> Scripted:
    """A queue whose workers write their process ID to a file, their key to a log, and for these keys wait."""
    return Scripted(
        f"folder = Path({str(folder)!r})\nnew = folder / f'new{{os.getpid()}}'\nnew.write_text(str(os.getpid()))\n"
        "(folder / 'log').open('a').write(job.key)\nnew.rename(folder / job.key)\n"
        f"while job.key in {keys!r} and not (folder / 'go_on').exists(): time.sleep(0.01)",
        **times,
    )


def test_progress_and_the_result(tmp_path: Path) -> None:
    go_on = tmp_path / "go_on"
    queue = Scripted(f"channel.send(Working(0.5, 'half'))\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.01)")
    assert queue.ask(task()) == Working(0.0, "starting")
    until(lambda: queue.ask(task()) == Working(0.5, "half"))
    go_on.touch()
    assert process(queue, task()) > 0


def test_one_worker_at_a_time_and_only_the_latest_files_of_a_run(tmp_path: Path) -> None:
    queue = blocking(tmp_path, "a", busy_s=3600.0)
    assert queue.ask(task("a", "fit")) == Working(0.0, "starting")
    until((tmp_path / "a").exists)
    for key in "bcd":
        assert queue.ask(task(key, "fit")) == Working(0.0, "waiting for another analysis to finish")
    queue.ask(task("x"))
    (tmp_path / "go_on").touch()
    processes = [process(queue, job) for job in (task("d", "fit"), task("x"))]
    assert (tmp_path / "log").read_text() == "adx"
    assert len({int((tmp_path / "a").read_text()), *processes}) == 3  # a fresh process for each document


@pytest.mark.parametrize("job", [task("a"), query("os.kill(os.getpid(), 9)")])
def test_a_killed_worker_is_a_failure_and_the_next_one_works(job: Job) -> None:
    queue = Scripted("if job.key == 'a': os.kill(os.getpid(), 9)")
    killed = ending(queue, job)
    assert isinstance(killed, Failed)
    assert killed.status == 500
    assert "was killed by SIGKILL (out of memory?)" in killed.message
    assert process(queue, task("b") if isinstance(job, Task) else query("")) > 0


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise ValueError('no <b>good</b>')", "failed: ValueError: no <b>good</b>"),
        ("channel.send(job)", "sent an unexpected message"),
        ("time.sleep(3600)", "was stopped after 0 s without an answer"),
    ],
)
def test_a_crash_is_a_failure_with_its_reason(code: str, message: str) -> None:
    failed = ending(Scripted(code, stalled_s=0.3 if "sleep" in code else 60.0), task())
    assert isinstance(failed, Failed)
    assert message in failed.message


def test_a_missing_interpreter_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    failed = ending(Queue(), task())
    assert isinstance(failed, Failed)
    assert "cannot be started (No such file or directory: /no/such/python)" in failed.message


def test_lasting_failures_are_remembered_and_passing_ones_tried_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    queue = Scripted(f"open({str(log)!r}, 'a').write('x')\nchannel.send(Failed('m', int(job.key)))", retry_s=3600.0)
    for status in ("422", "500", "422", "500"):
        assert isinstance(ending(queue, task(status)), Failed)
    assert log.read_text() == "xx"
    queue.retry_s = 0.0
    assert isinstance(queue.ask(task("422")), Failed)
    assert isinstance(queue.ask(task("500")), Working)
    until(lambda: not queue.lanes)
    assert log.read_text() == "xxx"


def test_what_was_made_and_removed_is_made_again() -> None:
    queue = Scripted(retry_s=0.0)
    for _ in range(2):
        assert queue.ask(task()) == Working(0.0, "starting")
        until(lambda: not queue.lanes)  # its reader sees the document in its place, and does not ask again


def test_what_nobody_waits_for_is_neither_begun_nor_finished(tmp_path: Path) -> None:
    queue = blocking(tmp_path, "a")
    queue.ask(task("a"))
    queue.ask(task("b"))
    until((tmp_path / "a").exists)
    queue.abandoned_s = 0.0
    assert dies(int((tmp_path / "a").read_text()))
    until(lambda: not queue.lanes)
    assert (tmp_path / "log").read_text() == "a"
    queue.abandoned_s = 180.0
    (tmp_path / "go_on").touch()
    assert queue.ask(task("a")) == Working(0.0, "starting")
    assert process(queue, task("a")) > 0  # asked for again, it is made


def test_small_runs_go_past_one_that_takes_long(tmp_path: Path) -> None:
    queue = blocking(tmp_path, "a", "b", busy_s=3600.0)
    queue.ask(task("a"))
    until((tmp_path / "a").exists)
    assert queue.ask(task("b")) == Working(0.0, "waiting for another analysis to finish")
    queue.busy_s = 0.0
    jobs = [task("large", size_bytes=SMALL_BYTES + 1), task("b"), task("c")]
    for _ in range(2):
        for job in jobs:
            queue.ask(job)
    until((tmp_path / "b").exists)
    assert sorted(queue.lanes) == ["runs", "small runs"]
    assert (tmp_path / "log").read_text() == "ab"
    (tmp_path / "go_on").touch()
    assert all(process(queue, job) for job in (task("a"), *jobs))
    until(lambda: not queue.lanes)


def test_children_of_a_worker_end_with_it_and_it_works_away_from_the_log_directory(tmp_path: Path) -> None:
    number = tmp_path / "number"
    queue = Scripted(
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])\n"
        f"open({str(number)!r}, 'w').write(f'{{child.pid}} {{os.getcwd()}}')\nos.kill(os.getpid(), 9)"
    )
    ending(queue, task())
    child, _, folder = number.read_text().partition(" ")
    assert dies(int(child))
    assert folder == "/"


def test_a_slow_query_is_answered_later_and_holds_up_no_document(tmp_path: Path) -> None:
    queue = Scripted(wait_s=0.0)
    slow = query(f"while not os.path.exists({str(tmp_path / 'go_on')!r}): time.sleep(0.01)")
    assert queue.ask(slow) == Working(0.0, "reading the reports")
    assert process(queue, task()) > 0
    (tmp_path / "go_on").touch()
    assert process(queue, slow) > 0


def test_a_query_that_nobody_asks_for_any_more_ends(tmp_path: Path) -> None:
    queue, number = Scripted(wait_s=0.0), tmp_path / "number"
    queue.ask(query(f"open({str(number)!r}, 'w').write(str(os.getpid())); time.sleep(3600)"))
    until(lambda: number.exists() and number.read_text() != "")
    queue.abandoned_s = 0.0
    assert dies(int(number.read_text()))
    queue.abandoned_s = 60.0
    assert process(queue, query("")) > 0


def test_a_job_survives_its_way_to_the_worker() -> None:
    files: Any = (stored("ä/\n.json"),)
    job = Task(Run("ä", "trace", Storage("ftp://me:secret@host/logs"), "ä", files, ()), "k", (), "")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=Task) == job
