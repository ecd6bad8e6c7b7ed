"""Background threads that end for a while when torch is to record Python functions.

To start and to stop that, torch visits the state of each thread. Before torch 2.12 it swaps into that state, which from
Python 3.12 on gives up the global lock (https://github.com/python/cpython/pull/104208). A thread that runs or ends
meanwhile then crashes the process. With any torch, the waits of such a thread would fill the recording.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Generator

PATIENCE_S = 2.0
"""Longest wait for threads to end."""

_lock = threading.RLock()
_all: weakref.WeakSet[BackgroundThread] = weakref.WeakSet()
_paused = False


class BackgroundThread:
    """Runs a generator in a daemon thread. The generator yields the seconds to wait before its next part.

    Between `pause` and `resume` there is no thread. Then the generator continues in a new one.
    """

    def __init__(self, steps: Generator[float, None, None], name: str) -> None:
        self.over = False
        """Whether the generator has ended."""
        self._steps = steps
        self._name = name
        self._wakes = threading.Event()
        self._stops = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        with _lock:
            _all.add(self)
            if not _paused:
                self.begin_thread()

    def stop(self, timeout_s: float | None = None) -> None:
        """Close the generator, in its thread if there is one, and wait for that."""
        with _lock:
            _all.discard(self)
            self._stops = True
        self.wake()
        self.join(timeout_s)
        if self._thread is None or not self._thread.is_alive():
            self._steps.close()

    def join(self, timeout_s: float | None) -> None:
        """Wait for the end of the thread."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def begin_thread(self) -> None:
        """Start a thread. It waits for an earlier one that has not ended yet."""
        before, self._wakes = self._thread, threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._wakes, before), name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Have the thread end, once the generator yields."""
        self._wakes.set()

    def _run(self, wakes: threading.Event, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        for wait_s in self._steps:
            if wakes.wait(wait_s):
                break
        else:
            self.over = True
        if self._stops:
            self._steps.close()


def pause() -> None:
    """End all background threads for now, also those that are started meanwhile."""
    global _paused
    with _lock:
        _paused = True
        for each in tuple(_all):
            each.wake()
        end_s = time.monotonic() + PATIENCE_S
        for each in tuple(_all):
            each.join(max(0.0, end_s - time.monotonic()))


def resume() -> None:
    """Continue all background threads."""
    global _paused
    with _lock:
        if _paused:
            _paused = False
            for each in tuple(_all):
                if not each.over:
                    each.begin_thread()


def other_threads() -> list[str]:
    """Return the names of the threads, other than this one, in which Python functions run or wait."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return sorted({names.get(ident, "unnamed") for ident in sys._current_frames() if ident != threading.get_ident()})
