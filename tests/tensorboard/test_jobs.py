from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_perf.tensorboard.jobs import Jobs
from lightning_perf.tensorboard.task import Answer, Done, Failed, SourceFile, Task, Working

WORKING = '{"state": "working", "done": 0.5, "message": "half"}'
DONE = '{"state": "done"}'


def task(key: str = "k", folder: str | None = None) -> Task:
    """A task; each key is that of another run where no folder is given."""
    folder = folder or f"run-{key}"
    files = (SourceFile(f"{folder}/a.json", 1, "v", "/nowhere"),)
    return Task("report", key, "/logs", None, folder, files, 1, ("/nowhere",), "/nowhere")


def scripted(code: str) -> Jobs:
    """Jobs whose worker runs a piece of Python after it has read its task as ``task``."""
    preamble = "import os, sys, time, json; task = json.loads(sys.stdin.readline())\n"
    return Jobs((sys.executable, "-c", preamble + code))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def ending(jobs: Jobs, asked: Task) -> Answer:
    """The last answer."""
    answers: list[Answer] = []

    def over() -> bool:
        answers.append(jobs.ask(asked))
        return not isinstance(answers[-1], Working)

    until(over)
    return answers[-1]


def test_tells_how_far_it_is_and_then_that_it_is_done(tmp_path: Path) -> None:
    go_on = tmp_path / "go_on"
    jobs = scripted(
        f"print('{WORKING}', flush=True)\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.01)\nprint('{DONE}')"
    )
    assert jobs.ask(task()) == Working(0.0, "starting")
    until(lambda: jobs.ask(task()) == Working(0.5, "half"))
    go_on.touch()
    assert ending(jobs, task()) == Done()


def test_one_worker_at_a_time(tmp_path: Path) -> None:
    jobs = scripted(
        f"mark = os.path.join({str(tmp_path)!r}, 'running')\n"
        "os.close(os.open(mark, os.O_CREAT | os.O_EXCL))\ntime.sleep(0.1)\nos.unlink(mark)\n"
        f"open(os.path.join({str(tmp_path)!r}, 'order'), 'a').write(task['key'])\nprint('{DONE}')"
    )
    assert jobs.ask(task("a")) == Working(0.0, "starting")
    assert jobs.ask(task("b")) == Working(0.0, "waiting for another analysis")
    assert [ending(jobs, task(key)) for key in "ab"] == [Done(), Done()]
    assert (tmp_path / "order").read_text() == "ab"


def test_a_killed_worker_is_a_failure_and_the_next_one_works() -> None:
    jobs = scripted(f"if task['key'] == 'a': os.kill(os.getpid(), 9)\nprint('{DONE}')")
    killed = ending(jobs, task("a"))
    assert isinstance(killed, Failed)
    assert "was killed, as a rule because the machine ran out of memory" in killed.message
    assert not killed.lasting
    assert ending(jobs, task("b")) == Done()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("os.kill(os.getpid(), 11)", "crashed (SIGSEGV)"),
        ("raise ValueError('no <b>good</b>')", "exit code 1: ValueError: no <b>good</b>"),
        ("sys.exit(0)", "ended with exit code 0"),
        ("print('nonsense')", "cannot be started (DecodeError"),
    ],
)
def test_a_crash_is_a_failure_with_its_reason(code: str, message: str) -> None:
    failed = ending(scripted(code), task())
    assert isinstance(failed, Failed)
    assert message in failed.message


def test_a_missing_interpreter_is_a_failure() -> None:
    failed = ending(Jobs(("/no/such/python",)), task())
    assert isinstance(failed, Failed)
    assert "cannot be started (FileNotFoundError" in failed.message


def test_lasting_failures_are_remembered_and_passing_ones_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    jobs = scripted(
        f"open({str(log)!r}, 'a').write('x')\n"
        "print(json.dumps({'state': 'failed', 'message': 'm', 'lasting': task['key'] == 'lasting'}))"
    )
    monkeypatch.setattr("lightning_perf.tensorboard.jobs.RETRY_S", 3600.0)
    for key in ("lasting", "passing", "lasting", "passing"):
        assert isinstance(ending(jobs, task(key)), Failed)
    assert log.read_text() == "xx"
    monkeypatch.setattr("lightning_perf.tensorboard.jobs.RETRY_S", 0.0)
    assert isinstance(jobs.ask(task("lasting")), Failed)
    assert isinstance(jobs.ask(task("passing")), Working)
    until(lambda: log.read_text() == "xxx")


def test_what_was_made_and_removed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = scripted(f"print('{DONE}')")
    jobs.ask(task())
    until(lambda: not jobs._running)  # its reader sees the document in its place, and does not ask again
    monkeypatch.setattr("lightning_perf.tensorboard.jobs.RETRY_S", 0.0)
    assert jobs.ask(task()) == Working(0.0, "starting")
    until(lambda: not jobs._running)


def test_a_worker_that_gets_nowhere_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_perf.tensorboard.jobs.STALLED_S", 0.3)
    failed = ending(scripted("time.sleep(3600)"), task())
    assert isinstance(failed, Failed)
    assert "had not got on" in failed.message


def test_what_nobody_waits_for_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, go_on = tmp_path / "log", tmp_path / "go_on"
    jobs = scripted(
        f"open({str(log)!r}, 'a').write(task['key'])\n"
        f"while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\nprint('{DONE}')"
    )
    for key in ("a", "b"):
        jobs.ask(task(key))
    until(log.exists)
    monkeypatch.setattr("lightning_perf.tensorboard.jobs.UNWANTED_S", 0.0)
    go_on.touch()
    until(lambda: not jobs._running)
    assert log.read_text() == "a"
    monkeypatch.undo()
    assert ending(jobs, task("b")) == Done()  # asked for again, it is made


def test_of_a_run_that_goes_on_changing_only_the_latest_files_are_analysed(tmp_path: Path) -> None:
    log, go_on = tmp_path / "log", tmp_path / "go_on"
    jobs = scripted(
        f"open({str(log)!r}, 'a').write(task['key'])\n"
        f"while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\nprint('{DONE}')"
    )
    jobs.ask(task("a", "fit"))
    until(log.exists)
    for key in "bcd":
        jobs.ask(task(key, "fit"))
    jobs.ask(task("x"))
    go_on.touch()
    assert ending(jobs, task("d", "fit")) == Done()
    until(lambda: not jobs._running)
    assert log.read_text() == "adx"


def test_children_of_a_worker_end_with_it(tmp_path: Path) -> None:
    number = tmp_path / "number"
    jobs = scripted(
        "import subprocess\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'], stdout=2)\n"
        f"open({str(number)!r}, 'w').write(str(child.pid))\nos.kill(os.getpid(), 9)"
    )
    ending(jobs, task())
    child = int(number.read_text())
    until(lambda: not _lives(child))


def test_a_worker_works_away_from_the_log_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    jobs = scripted("print(json.dumps({'state': 'failed', 'message': os.getcwd()}))")
    assert ending(jobs, task()) == Failed("/")


def _lives(process: int) -> bool:
    try:
        os.kill(process, signal.SIG_DFL)
    except ProcessLookupError:
        return False
    return "zombie" not in Path(f"/proc/{process}/status").read_text() if Path("/proc").exists() else True
