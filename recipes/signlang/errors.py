"""The one error that the recipe shows to its user."""

from __future__ import annotations

from lightning_perf.errors import LocatedError

__all__ = ["RecipeError"]


class RecipeError(LocatedError):
    """Something the user can put right: bad data, a wrong path, an impossible setting.

    The command line prints it without a traceback and exits with code 2.
    """
