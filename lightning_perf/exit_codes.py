"""Exit codes of all commands."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of a ``lightning-perf`` command.

    Example:
        >>> ExitCode.CHECK_FAILED == 1
        True
    """

    SUCCESS = 0
    """The command did its work. Without a gate, every verdict of a comparison is a success."""
    CHECK_FAILED = 1
    """A check failed: a gate, ``--fail-on`` or a limit, a candidate that diverged or did not finish, or no result."""
    USAGE = 2
    """An option, an input or an output file cannot be used, or lightning_perf has a bug."""
    UNFAIR = 3
    """The runs differ in more than the setting being tested, so they were not compared."""
    INCONCLUSIVE = 4
    """A gate could not be decided: the interval includes its limit."""
    INVALID_RUNS = 5
    """An arm has no valid run."""
    INTERRUPTED = 130
    """Ctrl-C stopped the command."""
