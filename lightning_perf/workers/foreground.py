"""Run a program in the foreground, in place of this process: same terminal, same streams, same signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)

FROM_KERNEL = 0x80
"""``SI_KERNEL`` in ``sigaction(2)``: a signal by a key such as Ctrl-C. The terminal sends it to the program as well."""

LOOK_S = 1.0
"""Time between two looks at the program. Normally its end arrives as a signal."""


def run_in_foreground(command: Sequence[str]) -> int:
    """Run a program and pass on the signals that this process gets.

    The program has the streams and the environment of this process. It dies with this process, even if this process is
    killed. Signals that a key of the terminal causes reach the program directly, so they are not passed on.
    """
    watched = {*PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        # `exec_command.py` unblocks the signals for the program.
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("exec_command.py")), str(os.getpid()), *command]
        )
        while process.poll() is None:
            received = signal.sigtimedwait(watched, LOOK_S)
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
