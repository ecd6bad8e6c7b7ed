"""Describe how a process ended, quote its last lines, and kill its process group."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import IO

LOG_BYTES = 4000
CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")
"""Signals for a fault of the program itself. All others come from outside."""


def describe_exit(code: int | None) -> str:
    """Describe how a process ended, as the end of a sentence with the process as its subject.

    Example:
        >>> describe_exit(3)
        'ended with exit code 3'
        >>> describe_exit(-signal.SIGSEGV)
        'crashed with SIGSEGV'
        >>> describe_exit(-signal.SIGKILL)
        'was killed by SIGKILL (out of memory?)'
    """
    if code is None:
        return "closed its connection"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name in CRASHES:
        return f"crashed with {name}"
    # The kernel sends SIGKILL when memory runs out, and reports that only in its own log.
    return f"was killed by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"


def last_lines(log: IO[bytes], count: int = 3, separator: str = " | ") -> str:
    """Return the last lines of a log that are not blank."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return separator.join(lines[-count:])


def kill_group(process: int) -> None:
    """Kill the processes of a group, even if the process that leads it has ended already."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
