"""Errors that users can fix, and the reason that another error gives."""

from __future__ import annotations

import re
from typing import ClassVar

from lightning_perf.exit_codes import ExitCode

_REASON_LENGTH = 240
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_GENERIC = re.compile(r"^(failed to|while executing|set torch|the following|traceback|backend compiler)", re.IGNORECASE)


class UserError(Exception):
    """An error that the user can fix. The command line prints its message without a traceback."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class LocatedError(UserError):
    """An error with a message that names the place, the problem and the fix.

    Args:
        where: The file, folder or option at fault.
        problem: The problem, as a clause without a full stop.
        action: The fix, as a sentence without a full stop.
    """

    def __init__(self, where: object, problem: str, action: str) -> None:
        super().__init__(f"{where}: {problem}. {action}.")
        self.where = str(where)
        self.problem = problem
        self.action = action

    def __reduce__(self) -> tuple[type[LocatedError], tuple[str, str, str]]:
        # Exceptions cross process boundaries (parallel ranks, DataLoader workers). The default would lose arguments.
        return type(self), (self.where, self.problem, self.action)


class TraceError(LocatedError):
    """A trace or another file of a run cannot be read. The message names it, the problem, and the fix."""


class ReportError(UserError, ValueError):
    """A file could not be read as a report. The message says why."""


def reason_of(error: BaseException) -> str:
    r"""Return the innermost cause of an error, on one line.

    Compilers wrap the cause in long reports about their own stages; the cause shows the problem with the model.

    Example:
        >>> try:
        ...     try:
        ...         raise ValueError("reshape to 32 rows\nlong report")
        ...     except ValueError as cause:
        ...         raise RuntimeError("step 1/3 failed") from cause
        ... except RuntimeError as error:
        ...     print(reason_of(error))
        ValueError: reshape to 32 rows
    """
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in _ANSI.sub("", str(error)).splitlines()]
    lines = [line for line in lines if line]
    telling = [line for line in lines if not _GENERIC.match(line)] or lines
    if not telling:
        return type(error).__name__
    line = telling[0]
    return f"{type(error).__name__}: {line if len(line) <= _REASON_LENGTH else line[: _REASON_LENGTH - 1] + '…'}"
