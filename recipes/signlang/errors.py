"""The one error that the recipe shows to its user."""

from __future__ import annotations

__all__ = ["RecipeError"]


class RecipeError(Exception):
    """Something the user can put right: bad data, a wrong path, an impossible setting.

    The command line prints it without a traceback and exits with code 2.

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

    def __reduce__(self) -> tuple[type[RecipeError], tuple[str, str, str]]:
        # Exceptions cross process boundaries (DataLoader workers); the default would lose two arguments.
        return type(self), (self.where, self.problem, self.action)
