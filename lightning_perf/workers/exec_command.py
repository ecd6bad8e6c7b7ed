"""Becomes a command that dies with its supervisor: ``python exec_command.py SUPERVISOR COMMAND …``.

A supervisor that is killed outright cannot end what it runs; without this, the command would run on and disturb the
next one. It is run by its path, so that the command's environment stays as it is, and needs the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""``prctl(2)``, linux/prctl.h."""

COMMAND_NOT_FOUND = 127


def main(supervisor: int, command: list[str]) -> None:
    """Become the command.

    Args:
        supervisor: Number of the process that has started this one.
        command: Program and arguments.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # it died before the request was in force
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        sys.exit(COMMAND_NOT_FOUND)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
