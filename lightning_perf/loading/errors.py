"""The error of ``lightning-perf data``."""

from __future__ import annotations

from lightning_perf.errors import UserError

__all__ = ["LoadingError", "loading_error"]


class LoadingError(UserError):
    """A data loader cannot be measured. The message says why, and how to fix it."""


def loading_error(where: str, problem: str, action: str) -> LoadingError:
    """Return an error that names the place, the problem and the fix.

    Args:
        where: The object or option at fault.
        problem: The problem, as a clause without a full stop.
        action: The fix, as a sentence without a full stop.
    """
    return LoadingError(f"{where}: {problem}. {action}.")
