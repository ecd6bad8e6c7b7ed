"""Errors that name the place, the problem and the fix."""

from __future__ import annotations

__all__ = ["LocatedError", "TraceError"]


class LocatedError(Exception):
    """Something that the user can put right.

    Args:
        where: The file, folder or option at fault.
        problem: What was wrong, as a clause without a full stop.
        action: What the user can do about it, as a sentence without a full stop.
    """

    def __init__(self, where: object, problem: str, action: str) -> None:
        super().__init__(f"{where}: {problem}. {action}.")
        self.where = str(where)
        self.problem = problem
        self.action = action

    def __reduce__(self) -> tuple[type[LocatedError], tuple[str, str, str]]:
        # Exceptions cross process boundaries (parallel ranks, DataLoader workers); the default would lose arguments.
        return type(self), (self.where, self.problem, self.action)


class TraceError(LocatedError):
    """A trace or another file of a run cannot be read: the message names it, the problem, and the fix."""
