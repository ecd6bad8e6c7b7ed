"""Run a program that knows nothing of its supervisor, and end it whatever happens."""

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

__all__ = ["StoppedError", "run_command"]

LOOK_S = 0.05
INTERRUPT_S = 10.0
TERMINATE_S = 5.0


class StoppedError(Exception):
    """The command was ended because its caller asked for it."""


def run_command(
    command: Sequence[str],
    *,
    folder: str | None,
    environment: Mapping[str, str],
    log: IO[bytes],
    stop: threading.Event | None = None,
    keep_open: Sequence[int] = (),
) -> int:
    """Run a program to its end, then kill what it leaves behind.

    It dies with this process, also where this one is killed (on Linux). After Ctrl-C and any other error here it gets
    the same Ctrl-C, then ``SIGTERM``, and is killed in the end.

    Args:
        command: Program and arguments.
        folder: Working directory; None for the present one.
        environment: All of its environment variables.
        log: Takes what it prints.
        stop: Set it in another thread to end the program.
        keep_open: File descriptors that it inherits.

    Returns:
        Its exit code; minus the signal's number where a signal ended it.

    Raises:
        StoppedError: `stop` was set; the program has ended.
        OSError: There is no such working directory.
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
        kill_group(process.pid)  # what outlives the program would disturb the next one
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
