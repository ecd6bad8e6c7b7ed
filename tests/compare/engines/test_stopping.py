"""Ctrl-C during a study: the run is asked to end, gets the time for it, and takes its processes with it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from lightning_perf.run_files import journal
from tests.support.processes import is_alive, until

# Handles Ctrl-C in a second, as a training that saves a checkpoint does, and has a process of its own.
TRAINING = """
import signal, subprocess, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
(folder / "child").write_text(str(child.pid))
try:
    time.sleep(120)
except KeyboardInterrupt:
    time.sleep(1.0)
    (folder / "saved").write_text("checkpoint")
    sys.exit(1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("interrupts", [1, 2])
def test_ctrl_c_lets_a_run_end_by_itself_and_leaves_no_process_behind(tmp_path, interrupts):
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    folder = tmp_path / "study"
    arms = [f"--arm={name}={sys.executable} {script} {tmp_path}" for name in "ab"]
    command = [sys.executable, "-c", "import sys; from lightning_perf.cli import main; sys.exit(main(sys.argv[1:]))"]
    command += ["study", str(folder), *arms, "--blocks=1", "--devices=cpu"]
    errors, leases = tmp_path / "errors", tmp_path / "leases"
    leases.mkdir()  # not those of this machine: another study would be waited for
    with errors.open("w") as stderr:
        study = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "TMPDIR": str(leases)},
            # A background job of a shell ignores Ctrl-C, and its children would too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        try:
            until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text())
            child = int((tmp_path / "child").read_text())
            time.sleep(0.3)
            for _ in range(interrupts):
                study.send_signal(signal.SIGINT)
                time.sleep(0.2)
            study.wait(30)
        finally:
            study.kill()
            study.wait()
    err = errors.read_text()
    assert study.returncode == 130, err
    assert (tmp_path / "saved").exists(), err
    assert not is_alive(child)
    assert "the run of a was stopped" in " ".join(journal.read_block(folder, 0).events)
