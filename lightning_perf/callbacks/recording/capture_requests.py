"""Captures on demand: a signal to the process, or a touched file in the run's folder."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from lightning_perf.run_files.run_folder import read_capture_start, take_capture_request, write_capture_start

__all__ = ["FileRequests", "SignalRequests"]

LOOK_EVERY_NS = 1_000_000_000
"""Time between two looks for the file: on a network's file system a look can take milliseconds."""

AGREED_AHEAD_NS = 2_500_000_000
"""So far ahead rank 0 sets a capture of several ranks: all have looked by then."""


class FileRequests:
    """Looks for the file ``profile-now``; with many ranks, rank 0 takes it and tells the others at which step to start.

    Args:
        folder: The run's folder.
        rank: This process's rank.
        world_size: Ranks of the run.
    """

    def __init__(self, folder: Path, *, rank: int, world_size: int) -> None:
        self._folder = folder
        self._rank = rank
        self._world_size = world_size
        self._looked_ns: int | None = None
        self._answered = read_capture_start(folder)

    def look(self, now_ns: int, step: int, step_ns: int) -> int | None:
        """Look for a request, once a second at most.

        Args:
            now_ns: The time.
            step: Number of the next step.
            step_ns: What a step takes.

        Returns:
            The step at which to start, when there is a new request.
        """
        if self._looked_ns is not None and now_ns - self._looked_ns < LOOK_EVERY_NS:
            return None
        self._looked_ns = now_ns
        return self._take(step, step_ns) if self._rank == 0 else self._hear(step)

    def _take(self, step: int, step_ns: int) -> int | None:
        if not take_capture_request(self._folder):
            return None
        if self._world_size == 1:
            return step
        start = step + -(-AGREED_AHEAD_NS // max(step_ns, 1))
        write_capture_start(self._folder, start)
        return start

    def _hear(self, step: int) -> int | None:
        start = read_capture_start(self._folder)
        if start is None or start == self._answered:
            return None
        self._answered = start
        return max(start, step)


class SignalRequests:
    """Hears SIGUSR2 until it is removed; a handler that was there before is called, too.

    Raises:
        RuntimeError: This is not the main thread, or the system has no such signal.
    """

    def __init__(self) -> None:
        number = getattr(signal, "SIGUSR2", None)
        if number is None:
            raise RuntimeError("this system has no SIGUSR2")
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signals can be handled in the main thread only")
        self._number = number
        self._heard = False
        self._previous: Any = signal.getsignal(number)
        self._handler: Callable[[int, FrameType | None], None] = self._hear
        signal.signal(number, self._handler)

    def take(self) -> bool:
        """Whether the signal has come since the last call."""
        heard, self._heard = self._heard, False
        return heard

    def remove(self) -> None:
        """Give the signal its previous handler back, unless somebody else has it by now."""
        if signal.getsignal(self._number) == self._handler:
            with contextlib.suppress(ValueError):  # outside of the main thread nothing can be done
                signal.signal(self._number, signal.SIG_DFL if self._previous is None else self._previous)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._heard = True
        if callable(self._previous):
            self._previous(number, frame)
