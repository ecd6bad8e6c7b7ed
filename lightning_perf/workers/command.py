"""Run a program that does not know its supervisor, and end it in any case."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from lightning_perf.workers.exit_status import kill_group

LOOK_S = 0.05
INTERRUPT_S = 10.0
TERMINATE_S = 5.0


class StoppedError(Exception):
    """The caller asked to end the command."""


def run_command(
    command: Sequence[str],
    *,
    folder: str | None,
    environment: Mapping[str, str],
    log: IO[bytes],
    stop: threading.Event | None = None,
    keep_open: Sequence[int] = (),
) -> int:
    """Run a program to its end, then kill the processes that it leaves behind.

    On Linux the program dies with this process, even if this process is killed. After Ctrl-C or another error here, the
    program first gets a Ctrl-C, 10 s later ``SIGTERM``, and 5 s later ``SIGKILL``.
    """
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("exec_command.py")), str(os.getpid()), *command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=keep_open,
    )
    try:
        while process.poll() is None:
            if stop is not None and stop.is_set():
                raise StoppedError
            time.sleep(LOOK_S)
    except BaseException:
        _interrupt(process)
        raise
    finally:
        kill_group(process.pid)  # its processes would disturb the next program
        process.wait()
    return process.returncode


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    for request, patience_s in ((signal.SIGINT, INTERRUPT_S), (signal.SIGTERM, TERMINATE_S)):
        try:
            os.killpg(process.pid, request)
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            pass
        return
