"""Real processes: what the worker does is tested in test_worker.py, in one process."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from lightning_perf.tune import process as module
from lightning_perf.tune.errors import NotApplicableError, OutOfTimeError, TrialError
from lightning_perf.tune.messages import Order
from lightning_perf.tune.process import TrialProcess

STUB = """
import sys
sys.path.insert(0, {root!r})
from multiprocessing.connection import Connection
from lightning_perf.tune.messages import *
pipe = Connection(int(sys.argv[-1]))
order = pipe.recv()
{body}
"""


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Starts a process whose program is a few lines of Python instead of the worker."""
    processes = []
    whole = subprocess.Popen

    def start(body):
        path = tmp_path / "stub.py"
        path.write_text(STUB.format(root=str(Path.cwd()), body=body))
        monkeypatch.setattr(
            module.subprocess, "Popen", lambda command, **more: whole([sys.executable, str(path), command[-1]], **more)
        )
        processes.append(TrialProcess(Order("a:b", (), (), 0, False, "")))
        return processes[-1]

    yield start
    for process in processes:
        with suppress(ValueError, OSError):
            process.close()


def dead(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A zombie of another's child counts as dead.
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


def dies(pid, seconds=10):
    until = time.monotonic() + seconds
    while not dead(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return dead(pid)


def test_answers_come_through(started):
    process = started("pipe.send(Ready())\nrun = pipe.recv()\npipe.send(Window(1.5, run.steps, None, ()))\npipe.recv()")
    process.ready(20)
    assert process.run(7, 20).steps == 7
    began = time.monotonic()
    process.close()
    assert time.monotonic() - began < 9  # it has ended by itself


def test_a_crash_tells_the_signal_and_the_last_words(started):
    process = started("import os\nprint('noise\\n' * 9 + 'last words')\nsys.stdout.flush()\nos.kill(os.getpid(), 11)")
    with pytest.raises(TrialError, match=r"ended by SIGSEGV: noise / noise / last words$"):
        process.ready(20)


def test_an_exit_tells_its_code(started):
    with pytest.raises(TrialError, match="ended with exit code 3: it printed nothing"):
        started("sys.exit(3)").ready(20)


def test_a_process_that_ends_between_windows(started):
    process = started("pipe.send(Ready())\nsys.exit(5)")
    process.ready(20)
    process._process.wait(20)
    with pytest.raises(TrialError, match="exit code 5"):
        process.run(1, 20)


def test_who_hangs_is_killed_with_its_children(started, tmp_path):
    process = started(
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '100'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        "pipe.send(Ready())\ntime.sleep(100)"
    )
    process.ready(20)
    with pytest.raises(OutOfTimeError, match="longer than the budget allows"):
        process.run(1, 0.2)
    assert dies(int((tmp_path / "child").read_text()))
    assert process._process.poll() is not None


def test_a_killed_process_is_noticed_although_its_children_hold_the_pipe(started):
    process = started(
        "import os, signal, time\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    time.sleep(100)\n"
        "os.kill(pid, signal.SIGSTOP)\n"
        "pipe.send(Ready())\npipe.recv()\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    process.ready(20)
    began = time.monotonic()
    with pytest.raises(TrialError, match="ended by SIGKILL"):
        process.run(1, 60)
    assert time.monotonic() - began < 30


def test_failures_are_told_apart(started):
    with pytest.raises(NotApplicableError, match="not for this"):
        started("pipe.send(Failed('not for this', 'not applicable'))").ready(20)
    with pytest.raises(TrialError, match="broken") as caught:
        started("pipe.send(Failed('broken'))").ready(20)
    assert type(caught.value) is TrialError


def test_no_process_at_all(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(TrialError, match="no process can be started"):
        TrialProcess(Order("a:b", (), (), 0, False, ""))
