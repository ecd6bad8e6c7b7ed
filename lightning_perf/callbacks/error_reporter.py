"""Errors of the callbacks: they become one warning and never stop the training."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning_perf.run_files.run_folder import mark_full_disk

_logger = logging.getLogger("lightning_perf")


class ErrorReporter:
    """The errors of one fit.

    The first error of a kind becomes a warning, and later ones only go to the log ``lightning_perf``.

    Attributes:
        messages: One line per error, for the report.
    """

    def __init__(self, name: str = "PerfCallback") -> None:
        self.name = name
        self.messages: list[str] = []
        self._warned: set[str] = set()
        self.folder: Path | None = None

    @contextmanager
    def instead(self, consequence: str, *, kind: str = "profiling") -> Iterator[None]:
        """Report an error of the block, and continue after it."""
        try:
            yield
        except Exception as error:
            self.report(consequence, error, kind=kind)

    def report(self, consequence: str, error: BaseException, *, kind: str = "profiling") -> None:
        """Report an error; training continues.

        Args:
            consequence: The part of the profile that is missing because of it, as a clause.
            kind: Errors of one kind often follow from one another, so only the first is worth a warning.
        """
        message = f"{self.name}: {consequence}, training continues ({type(error).__name__}: {error})"
        self.messages.append(message)
        if self.folder is not None:
            mark_full_disk(self.folder, error)  # the messages may not fit on it either
        _logger.debug(message, exc_info=error)
        if kind not in self._warned:
            self._warned.add(kind)
            show_warning(message, RuntimeWarning)

    def warn(self, message: str) -> None:
        """Warn of a problem of the training."""
        self.messages.append(message)
        show_warning(message, RuntimeWarning)


def show_warning(message: str, kind: type[Warning]) -> None:
    """Warn, without an error if the user has turned warnings into errors."""
    try:
        warnings.warn(message, kind, stacklevel=3)
    except kind:
        _logger.warning(message)
