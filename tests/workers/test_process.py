"""Real worker processes, and whatever may happen to them."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightning_perf.workers.process import (
    WorkerExitError,
    WorkerFailureError,
    WorkerProcess,
    WorkerTimeoutError,
    wait_for_messages,
)
from tests.support.processes import dies, is_alive
from tests.workers.tasks import Begin, Text, Value


@pytest.fixture
def start():
    started = []

    def make(task, text="", **options):
        started.append(WorkerProcess(f"tests.workers.tasks:{task}", Begin(text), **options))
        return started[-1]

    yield make
    for worker in started:
        worker.kill()


def test_messages_go_both_ways_and_the_end_is_orderly(start):
    with start("echo") as worker:
        for text in ("one", "ab" * (8 << 20)):
            worker.send(Text(text))
            assert worker.receive(Text, timeout_s=60) == Text(text)
        worker.send(Value(math.nan))
        assert math.isnan(worker.receive(Value, timeout_s=60).value)
    assert worker.exit_code == 0


def test_whatever_libraries_print_is_no_message_and_errors_quote_it(start):
    worker = start("chatter")
    assert worker.receive(Value, timeout_s=60) == Value(1.0)
    worker.send(Value(2.0))
    with pytest.raises(WorkerExitError, match=r"exit code 7; last lines: .* \| printed by C$") as caught:
        worker.receive(Value, timeout_s=60)
    assert "printed by Python" in str(caught.value)


def test_each_message_of_a_series_has_the_whole_timeout(start):
    worker = start("progress")
    said = [worker.receive(Value, Text, timeout_s=10)]
    while isinstance(said[-1], Value):
        said.append(worker.receive(Value, Text, timeout_s=10))
    assert said == [Value(0.0), Value(0.5), Value(1.0), Text("done")]


def test_another_message_than_the_awaited_one_is_an_error(start):
    with pytest.raises(WorkerExitError, match=r"its process sent an unexpected message \(.*Value"):
        start("progress").receive(Text, timeout_s=60)


@pytest.mark.parametrize(
    ("task", "error", "reason"),
    [
        ("raise_error", "OSError", "OSError: the disk is gone"),
        ("leave", "SystemExit", "SystemExit: no data"),
        ("no_such_task", "AttributeError", "AttributeError: .*no_such_task"),
    ],
)
def test_an_error_in_the_worker_process_is_raised_here(task, error, reason, start):
    with pytest.raises(WorkerFailureError, match=f"^{reason}") as caught:
        start(task).receive(Text, timeout_s=60)
    assert caught.value.error == error


@pytest.mark.parametrize(
    ("task", "code", "said"),
    [
        ("end", 3, r"^its process ended with exit code 3; last lines: noise \| first \| the reason$"),
        ("end_silently", 3, r"^its process ended with exit code 3; it printed nothing$"),
        ("crash", -signal.SIGSEGV, r"^its process crashed with SIGSEGV; last lines: before the crash$"),
        ("kill_itself", -signal.SIGKILL, r"was killed by SIGKILL \(out of memory\?\)"),
    ],
)
def test_how_it_ended_is_told_with_what_it_printed(task, code, said, start):
    with pytest.raises(WorkerExitError, match=said) as caught:
        start(task).receive(Text, timeout_s=60)
    assert caught.value.code == code


def test_one_that_ended_between_two_messages(start):
    worker = start("echo")
    worker.send(Text("one"))
    worker.receive(Text, timeout_s=60)
    os.kill(worker.pid, signal.SIGTERM)
    while worker.exit_code is None:  # a zombie's other threads may hold the pipe a moment longer
        time.sleep(0.01)
    with pytest.raises(WorkerExitError, match="was killed by SIGTERM"):
        worker.send(Text("two"))


def test_one_that_hangs_is_killed_after_the_timeout_with_all_that_it_started(start):
    worker = start("hang_with_children")
    numbers = [int(number) for number in worker.receive(Text, timeout_s=60).text.split()]
    assert len(numbers) == 3
    assert all(map(is_alive, numbers))
    with pytest.raises(WorkerTimeoutError, match="stopped after 0 s without an answer; it printed nothing"):
        worker.receive(Text, timeout_s=0.1)
    assert all(map(dies, numbers))


def test_a_timeout_quotes_what_it_printed(start):
    worker = start("hang_after_a_message")
    worker.receive(Value, timeout_s=60)
    with pytest.raises(WorkerTimeoutError, match="without an answer; last lines: about to hang"):
        worker.receive(Text, timeout_s=0.1)


def test_a_killed_one_is_noticed_although_its_own_process_keeps_the_connection_open(start):
    worker = start("die_with_children")
    child = int(worker.receive(Text, timeout_s=60).text)
    worker.send(Begin())
    with pytest.raises(WorkerExitError, match="was killed by SIGKILL"):
        worker.receive(Text, timeout_s=60)
    assert dies(child)


@pytest.mark.parametrize(("task", "patience_s"), [("hang", 600.0), ("hang_after_a_message", 0.1)])
def test_closing_kills_one_at_work_at_once_and_one_that_was_asked_to_stop_after_a_while(
    task, patience_s, start, monkeypatch
):
    monkeypatch.setattr("lightning_perf.workers.process.STOP_S", patience_s)
    worker = start(task)
    if task == "hang_after_a_message":
        worker.receive(Value, timeout_s=60)
    worker.close()
    assert worker.exit_code == -signal.SIGKILL


def test_an_error_in_the_supervisor_kills_it(start):
    with pytest.raises(KeyboardInterrupt), start("echo") as worker:
        raise KeyboardInterrupt
    assert worker.exit_code == -signal.SIGKILL


SUPERVISOR = """
import sys
from lightning_perf.workers.process import WorkerProcess
from tests.workers.tasks import Begin, Text
print("main module", flush=True)
with WorkerProcess("tests.workers.tasks:hang_with_children", Begin(), path=sys.path) as worker:
    print(worker.receive(Text, timeout_s=60).text, flush=True)
    worker.receive(Text)
"""


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_its_supervisor(blow, tmp_path):
    script = tmp_path / "supervisor.py"
    script.write_text(SUPERVISOR)
    supervisor = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with supervisor:
        # Only the supervisor runs its main module: no worker process prints there, or a second time.
        assert supervisor.stdout.readline() == "main module\n"
        numbers = [int(number) for number in supervisor.stdout.readline().split()]
        assert len(numbers) == 3
        assert len({os.getsid(number) for number in numbers}) == 1
        assert os.getsid(numbers[0]) != os.getsid(supervisor.pid)  # the terminal's Ctrl-C reaches the supervisor only
        supervisor.send_signal(blow)
        supervisor.wait(30)
    assert supervisor.returncode == -blow
    assert all(map(dies, numbers))


def test_environment_folder_and_search_path(start, tmp_path, monkeypatch):
    assert start("environment", "SOME", environment={"SOME": "value"}).receive(Text, timeout_s=60).text == "value"
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", root)
    folder, *path = start("search_path", folder=str(tmp_path)).receive(Text, timeout_s=60).text.splitlines()
    assert folder == str(tmp_path)
    assert root in path
    folder, *path = (
        start("search_path", path=["", "/of/the/caller", root]).receive(Text, timeout_s=60).text.splitlines()
    )
    assert folder == str(Path.cwd())
    assert {"/of/the/caller", str(Path.cwd())} <= set(path)
    monkeypatch.delenv("PYTHONPATH")  # the package itself is found in any case, and nothing of the working directory
    safe = {"PYTHONSAFEPATH": "1"} if sys.version_info >= (3, 11) else {}
    worker = WorkerProcess("lightning_perf.workers.no:such", Begin(), folder=str(tmp_path), environment=safe)
    with worker, pytest.raises(WorkerFailureError, match=r"No module named 'lightning_perf\.workers\.no'"):
        worker.receive(Text, timeout_s=60)


@pytest.mark.parametrize(
    ("executable", "said"),
    [
        ("/no/such/python", r"cannot be started \(No such file or directory: /no/such/python\)"),
        ("/bin/false", "ended with exit code 1; it printed nothing"),
    ],
)
def test_no_interpreter_or_something_else(executable, said, monkeypatch):
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(WorkerExitError, match=said), WorkerProcess("tests.workers.tasks:echo", Begin()) as worker:
        worker.receive(Text, timeout_s=60)


def test_several_at_once(start):
    workers = [start("echo"), start("end"), start("hang")]
    assert wait_for_messages(workers) == [workers[1]]
    workers[0].send(Text("one"))
    assert wait_for_messages([workers[0], workers[2]]) == [workers[0]]
    assert wait_for_messages([]) == []


def test_memory_beyond_the_limit_is_refused(start):
    assert start("take_memory").receive(Text, timeout_s=60).text == "refused"
