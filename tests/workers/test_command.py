"""Programs that know nothing of their supervisor."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from lightning_perf.workers import command as module
from lightning_perf.workers.command import StoppedError, run_command
from tests.support.processes import dies, is_alive

STUBBORN = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; print('ready', flush=True); "


def run(code, tmp_path, stop=None, **environment):
    with (tmp_path / "log").open("wb") as log:
        return run_command(
            [sys.executable, "-c", code],
            folder=str(tmp_path),
            environment={**os.environ, **environment},
            log=log,
            stop=stop,
        )


def log_of(tmp_path):
    return (tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""


def stopped_when(ready):
    """An event that is set once `ready` is true."""
    stop = threading.Event()

    def wait():
        while not ready():
            time.sleep(0.02)
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    return stop


def test_the_exit_code_folder_environment_and_output(tmp_path):
    code = "import os, sys; print(os.getcwd(), os.environ['SOME']); sys.exit(4)"
    assert run(code, tmp_path, SOME="value") == 4
    assert log_of(tmp_path) == f"{tmp_path} value\n"


def test_a_signal_is_its_negative_number(tmp_path):
    assert run("import os; os.kill(os.getpid(), 9)", tmp_path) == -9


def test_a_program_that_is_not_there(tmp_path):
    with (tmp_path / "log").open("wb") as log:
        assert run_command(["no-such-program"], folder=None, environment=os.environ, log=log) == 127
    assert log_of(tmp_path) == "no-such-program: No such file or directory\n"


def test_a_folder_that_is_not_there(tmp_path):
    with (tmp_path / "log").open("wb") as log, pytest.raises(FileNotFoundError):
        run_command(["true"], folder=str(tmp_path / "gone"), environment=os.environ, log=log)


def test_what_it_leaves_behind_is_killed(tmp_path):
    code = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"
    assert run(code, tmp_path) == 0
    assert dies(int(log_of(tmp_path)))


def test_stopping_is_a_ctrl_c_that_the_program_may_answer(tmp_path):
    code = (
        "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('saved', flush=True)"
    )
    with pytest.raises(StoppedError):
        run(code, tmp_path, stopped_when(lambda: "ready" in log_of(tmp_path)))
    assert log_of(tmp_path) == "ready\nsaved\n"


def test_who_does_not_end_is_killed_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "INTERRUPT_S", 0.3)
    monkeypatch.setattr(module, "TERMINATE_S", 0.3)
    code = f"import os; print(os.getpid(), os.fork(), flush=True); {STUBBORN} time.sleep(600)"
    with pytest.raises(StoppedError):
        run(code, tmp_path, stopped_when(lambda: log_of(tmp_path).count("ready") == 2))
    numbers = {int(word) for word in log_of(tmp_path).split() if word.isdigit()} - {0}
    assert len(numbers) == 2
    assert all(map(dies, numbers))


SUPERVISOR = """
import os, sys
from lightning_perf.workers.command import run_command
with open(sys.argv[1], "wb") as log:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    run_command([sys.executable, "-c", code], folder=None, environment=os.environ, log=log)
"""


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_it_dies_with_its_supervisor(blow, tmp_path):
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(tmp_path / "log")], stderr=subprocess.DEVNULL)
    while not log_of(tmp_path).endswith("\n"):
        assert supervisor.poll() is None
        time.sleep(0.02)
    program = int(log_of(tmp_path))
    assert is_alive(program)
    supervisor.send_signal(blow)
    assert supervisor.wait(30) == -blow
    assert dies(program)
