"""Runs a command so that it dies with its parent: ``python -m lightning_perf.compare.engines.child COMMAND …``.

A driver that is killed outright cannot end its run; without this, the run would go on and disturb the next.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["main"]

PR_SET_PDEATHSIG = 1
"""``prctl(2)``, linux/prctl.h."""

PARENT_VARIABLE = "LIGHTNING_PERF_PARENT"
COMMAND_NOT_FOUND = 127


def main(command: list[str]) -> None:
    """Become the command.

    Args:
        command: Program and arguments.
    """
    parent = int(os.environ.pop(PARENT_VARIABLE, "0"))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent and os.getppid() != parent:  # it died before the request was in force
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        sys.exit(COMMAND_NOT_FOUND)


if __name__ == "__main__":
    main(sys.argv[1:])
