from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lightning_perf.tensorboard.document_queue import DocumentQueue
from lightning_perf.tensorboard.task import Answer, Done, Failed, SourceFile, Task, Working
from tests.support.processes import dies


def task(key: str = "k", folder: str | None = None) -> Task:
    """A task; each key is that of another run where no folder is given."""
    folder = folder or f"run-{key}"
    files = (SourceFile(f"{folder}/a.json", 1, "v", "/nowhere"),)
    return Task("report", key, "/logs", None, folder, files, 1, ("/nowhere",), "/nowhere")


class Scripted(DocumentQueue):
    """A queue whose worker process runs a piece of Python (see `scripted_workers`), and then is done."""

    def __init__(self, code: str) -> None:
        super().__init__("tests.tensorboard.scripted_workers:main")
        self._code = code

    def ask(self, task: Task) -> Answer:
        return super().ask(msgspec.structs.replace(task, fetched=self._code))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def ending(queue: DocumentQueue, asked: Task) -> Answer:
    """The last answer."""
    answers: list[Answer] = []

    def over() -> bool:
        answers.append(queue.ask(asked))
        return not isinstance(answers[-1], Working)

    until(over)
    return answers[-1]


def test_tells_how_far_it_is_and_then_that_it_is_done(tmp_path: Path) -> None:
    go_on = tmp_path / "go_on"
    queue = Scripted(f"channel.send(Working(0.5, 'half'))\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.01)")
    assert queue.ask(task()) == Working(0.0, "starting")
    until(lambda: queue.ask(task()) == Working(0.5, "half"))
    go_on.touch()
    assert ending(queue, task()) == Done()


def test_one_worker_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_perf.tensorboard.document_queue.BUSY_S", 3600.0)
    queue = Scripted(
        f"mark = os.path.join({str(tmp_path)!r}, 'running')\n"
        "os.close(os.open(mark, os.O_CREAT | os.O_EXCL))\ntime.sleep(0.1)\nos.unlink(mark)\n"
        f"open(os.path.join({str(tmp_path)!r}, 'order'), 'a').write(task.key)"
    )
    assert queue.ask(task("a")) == Working(0.0, "starting")
    assert queue.ask(task("b")) == Working(0.0, "waiting for another analysis to finish")
    assert [ending(queue, task(key)) for key in "ab"] == [Done(), Done()]
    assert (tmp_path / "order").read_text() == "ab"


def test_a_killed_worker_is_a_failure_and_the_next_one_works() -> None:
    queue = Scripted("if task.key == 'a': os.kill(os.getpid(), 9)")
    killed = ending(queue, task("a"))
    assert isinstance(killed, Failed)
    assert "was killed by SIGKILL (out of memory?)" in killed.message
    assert not killed.lasting
    assert ending(queue, task("b")) == Done()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("os.kill(os.getpid(), 11)", "crashed with SIGSEGV"),
        ("raise ValueError('no <b>good</b>')", "failed: ValueError: no <b>good</b>"),
        ("print('no good', flush=True); os._exit(1)", "ended with exit code 1; last lines: no good"),
        ("os._exit(0)", "ended with exit code 0"),
        ("channel.send(task)", "sent an unexpected message"),
    ],
)
def test_a_crash_is_a_failure_with_its_reason(code: str, message: str) -> None:
    failed = ending(Scripted(code), task())
    assert isinstance(failed, Failed)
    assert message in failed.message


def test_a_missing_interpreter_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    failed = ending(DocumentQueue(), task())
    assert isinstance(failed, Failed)
    assert "cannot be started (No such file or directory: /no/such/python)" in failed.message


def test_lasting_failures_are_remembered_and_passing_ones_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    queue = Scripted(f"open({str(log)!r}, 'a').write('x')\nchannel.send(Failed('m', lasting=task.key == 'lasting'))")
    monkeypatch.setattr("lightning_perf.tensorboard.document_queue.RETRY_S", 3600.0)
    for key in ("lasting", "passing", "lasting", "passing"):
        assert isinstance(ending(queue, task(key)), Failed)
    assert log.read_text() == "xx"
    monkeypatch.setattr("lightning_perf.tensorboard.document_queue.RETRY_S", 0.0)
    assert isinstance(queue.ask(task("lasting")), Failed)
    assert isinstance(queue.ask(task("passing")), Working)
    until(lambda: log.read_text() == "xxx")


def test_what_was_made_and_removed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Scripted("")
    queue.ask(task())
    until(lambda: not queue._running)  # its reader sees the document in its place, and does not ask again
    monkeypatch.setattr("lightning_perf.tensorboard.document_queue.RETRY_S", 0.0)
    assert queue.ask(task()) == Working(0.0, "starting")
    until(lambda: not queue._running)


def test_a_worker_that_gets_nowhere_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_perf.tensorboard.document_queue.STALLED_S", 0.3)
    failed = ending(Scripted("time.sleep(3600)"), task())
    assert isinstance(failed, Failed)
    assert "was stopped after 0 s without an answer" in failed.message


def test_what_nobody_waits_for_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, go_on = tmp_path / "log", tmp_path / "go_on"
    queue = Scripted(
        f"open({str(log)!r}, 'a').write(task.key)\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.01)"
    )
    for key in ("a", "b"):
        queue.ask(task(key))
    until(log.exists)
    monkeypatch.setattr("lightning_perf.tensorboard.document_queue.UNWANTED_S", 0.0)
    go_on.touch()
    until(lambda: not queue._running)
    assert log.read_text() == "a"
    monkeypatch.undo()
    assert ending(queue, task("b")) == Done()  # asked for again, it is made


def test_of_a_run_that_goes_on_changing_only_the_latest_files_are_analysed(tmp_path: Path) -> None:
    log, go_on = tmp_path / "log", tmp_path / "go_on"
    queue = Scripted(
        f"open({str(log)!r}, 'a').write(task.key)\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.01)"
    )
    queue.ask(task("a", "fit"))
    until(log.exists)
    for key in "bcd":
        queue.ask(task(key, "fit"))
    queue.ask(task("x"))
    go_on.touch()
    assert ending(queue, task("d", "fit")) == Done()
    until(lambda: not queue._running)
    assert log.read_text() == "adx"


def test_children_of_a_worker_end_with_it(tmp_path: Path) -> None:
    number = tmp_path / "number"
    queue = Scripted(
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])\n"
        f"open({str(number)!r}, 'w').write(str(child.pid))\nos.kill(os.getpid(), 9)"
    )
    ending(queue, task())
    child = int(number.read_text())
    assert dies(child)


def test_a_worker_works_away_from_the_log_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    queue = Scripted("channel.send(Failed(os.getcwd()))")
    assert ending(queue, task()) == Failed("/")
