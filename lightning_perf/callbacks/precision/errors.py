"""The one error that a conflict of precisions raises."""

from __future__ import annotations

__all__ = ["PrecisionError"]


class PrecisionError(ValueError):
    """The asked-for precision cannot be had: says what is in the way and what to change.

    Raised before the first step. Unlike an error in profiling it ends the run, since training in another precision
    than the one asked for would be a different training.

    Args:
        problem: What is in the way, as a clause without a full stop.
        action: What the user can do about it, as a sentence without a full stop.
    """

    def __init__(self, problem: str, action: str) -> None:
        super().__init__(f"{problem}. {action}.")
        self.problem = problem
        self.action = action

    def __reduce__(self) -> tuple[type[PrecisionError], tuple[str, str]]:
        # It crosses process boundaries under DDP; the default would lose an argument.
        return type(self), (self.problem, self.action)
