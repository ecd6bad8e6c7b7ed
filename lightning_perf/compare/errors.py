"""The errors that comparing and studying raise for what a user can mend."""

from __future__ import annotations

__all__ = ["CompareError", "InvalidRunsError"]


class CompareError(Exception):
    """A comparison or a study cannot go on: says what was wrong, where, and what to do."""


class InvalidRunsError(CompareError):
    """Too few valid runs are left to compare."""
