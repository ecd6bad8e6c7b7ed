"""The error that the recipe shows to its users."""

from __future__ import annotations

from lightning_perf.errors import LocatedError


class RecipeError(LocatedError):
    """A problem that the user can fix: bad data, a wrong path, an impossible setting.

    The command line prints it without a traceback and exits with code 2.
    """
