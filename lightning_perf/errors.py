"""The error that reading a file of a run raises."""

from __future__ import annotations

__all__ = ["TraceError"]


class TraceError(Exception):
    """A trace or another file of a run cannot be read: the message names it, the problem, and the fix.

    Args:
        path: The file or folder at fault.
        problem: What was wrong, as a clause without a full stop.
        action: What the user can do about it, as a sentence without a full stop.
    """

    def __init__(self, path: object, problem: str, action: str) -> None:
        super().__init__(f"{path}: {problem}. {action}.")
        self.path = str(path)
        self.problem = problem
        self.action = action

    def __reduce__(self) -> tuple[type[TraceError], tuple[str, str, str]]:
        # Exceptions cross process boundaries (ranks are read in parallel); the default would lose two arguments.
        return type(self), (self.path, self.problem, self.action)
