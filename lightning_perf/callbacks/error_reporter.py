"""Errors in profiling: one warning for the user, never an error in the training run."""

from __future__ import annotations

import logging
import warnings

__all__ = ["ErrorReporter"]

_logger = logging.getLogger("lightning_perf")


class ErrorReporter:
    """The errors of one fit. The first becomes a warning, further ones go to the log ``lightning_perf`` only.

    Attributes:
        messages: One line per error, for the report.
    """

    def __init__(self) -> None:
        self.messages: list[str] = []

    def report(self, consequence: str, error: BaseException) -> None:
        """Report an error; training continues.

        Args:
            consequence: What the user loses by it.
            error: What went wrong.
        """
        message = f"PerfCallback: {consequence}, training goes on ({type(error).__name__}: {error})"
        self.messages.append(message)
        _logger.debug(message, exc_info=error)
        if len(self.messages) == 1:
            try:
                warnings.warn(message, RuntimeWarning, stacklevel=2)
            except RuntimeWarning:  # where warnings are errors, this one must not be
                _logger.warning(message)
