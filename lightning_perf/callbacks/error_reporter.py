"""Errors of the callbacks: they become one warning and never stop the training."""

from __future__ import annotations

import logging
import warnings

__all__ = ["ErrorReporter"]

_logger = logging.getLogger("lightning_perf")


class ErrorReporter:
    """The errors of one fit. The first becomes a warning, and later ones only go to the log ``lightning_perf``.

    Attributes:
        messages: One line per error, for the report.
    """

    def __init__(self) -> None:
        self.messages: list[str] = []

    def report(self, consequence: str, error: BaseException) -> None:
        """Report an error; training continues.

        Args:
            consequence: The part of the profile that is missing because of it, as a clause.
            error: The exception.
        """
        message = f"PerfCallback: {consequence}, training continues ({type(error).__name__}: {error})"
        self.messages.append(message)
        _logger.debug(message, exc_info=error)
        if len(self.messages) == 1:
            try:
                warnings.warn(message, RuntimeWarning, stacklevel=2)
            except RuntimeWarning:  # even if the user has turned warnings into errors
                _logger.warning(message)
