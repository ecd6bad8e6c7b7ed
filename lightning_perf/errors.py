"""Errors that users can fix."""

from __future__ import annotations

from typing import ClassVar

from lightning_perf.exit_codes import ExitCode

__all__ = ["LocatedError", "TraceError", "UserError"]


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
