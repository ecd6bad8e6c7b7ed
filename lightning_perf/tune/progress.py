"""Progress of a tuning: a line for each event, and one with the time left whenever nothing else happens for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from lightning_perf.units import describe_left

EVERY_S = 10.0
"""Seconds of silence before a line with the time left."""


class Progress:
    """Passes lines of progress on, and breaks long silences.

    Use it as a context manager: it has a thread of its own while it is open.
    """

    def __init__(
        self, on_progress: Callable[[str], None], left_s: Callable[[], float], every_s: float = EVERY_S
    ) -> None:
        self._on_progress = on_progress
        self._left_s = left_s
        self._every_s = every_s
        self._doing = ""
        self._silent = True
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._break_silences, name="tune-progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()

    def say(self, line: str, doing: str = "") -> None:
        """Pass a line on."""
        self._silent = False
        self._doing = doing
        self._on_progress(line)

    def doing(self, activity: str) -> None:
        """Set the activity for the lines that break silences."""
        self._doing = activity

    def _break_silences(self) -> None:
        while not self._closed.wait(self._every_s):
            if self._silent and self._doing:
                self._on_progress(f"  {self._doing}, {describe_left(self._left_s())}")
            self._silent = True
