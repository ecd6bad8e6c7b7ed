"""Run a program that does not know its supervisor: in the background, or in place of this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from lightning_perf.workers.channel import kill_group

LOOK_S = 0.05
LOOK_AT_LEAST_S = 1.0
"""Time between two looks at a program: in the background, and in the foreground, where its end arrives as a signal."""

FROM_KERNEL = 0x80
"""``SI_KERNEL`` in ``sigaction(2)``: a signal by a key such as Ctrl-C. The terminal sends it to the program as well."""

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
    process = _start(
        command,
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


def run_in_foreground(command: Sequence[str]) -> int:
    """Run a program and pass on the signals that this process gets.

    The program has the streams and the environment of this process. It dies with this process, even if this process is
    killed. Signals that a key of the terminal causes reach the program directly, so they are not passed on.
    """
    passed_on = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
    watched = {*passed_on, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        process = _start(command)  # `exec_command.py` unblocks the signals for the program
        while process.poll() is None:
            received = signal.sigtimedwait(watched, LOOK_AT_LEAST_S)
            if received is None or received.si_signo == signal.SIGCHLD or received.si_code == FROM_KERNEL:
                continue
            process.send_signal(received.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process.returncode


def die_of(number: int) -> None:
    """End this process with a signal, as the program ended, so that the caller sees the same status."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # one dump is enough
        signal.signal(number, signal.SIG_DFL)
    except (OSError, ValueError):  # SIGKILL has no handler to reset
        pass
    os.kill(os.getpid(), number)


def _start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program that dies with this process."""
    become = str(Path(__file__).with_name("exec_command.py"))
    return subprocess.Popen([sys.executable, become, str(os.getpid()), *command], **options)
