"""Become a command that dies with its supervisor: ``python exec_command.py SUPERVISOR COMMAND …``.

A killed supervisor cannot end its command, which would then disturb the next one. This file is run by its path and
needs only the standard library, so that the command's environment stays unchanged.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""``prctl(2)``, linux/prctl.h."""

COMMAND_NOT_FOUND = 127


def die_with(supervisor: int) -> None:
    """Let the kernel kill this process when the thread that started it ends. Only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # it died before the request was in force
            os.kill(os.getpid(), signal.SIGKILL)


def main(supervisor: int, command: list[str]) -> None:
    """Become the command."""
    die_with(supervisor)
    # A supervisor that waits for signals blocks them, and the command would inherit that.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        sys.exit(COMMAND_NOT_FOUND)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
