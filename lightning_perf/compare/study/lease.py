"""Let only one run use a device at a time, with a file lock that the system releases even if its holder crashes."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType

POLL_S = 0.2


class LeaseTakenError(Exception):
    """Another process holds the lease."""


class Lease:
    """An exclusive lock on a device or a study, used as a context manager.

    A child process that inherits `descriptor` also holds the lock, so a run that outlives its study keeps its device.

    Args:
        folder: Folder of the lock file, created if it does not exist.

    Raises:
        LeaseTakenError: Another process holds the lock, and either `wait` is false or `stop` was set.
    """

    def __init__(self, folder: Path, name: str, *, wait: bool = False, stop: threading.Event | None = None) -> None:
        self._path = folder / f"{name}.lock"
        self._wait = wait
        self._stop = stop
        self.descriptor = -1

    def __enter__(self) -> Lease:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        while not self._take():
            if not self._wait or (self._stop is not None and self._stop.is_set()):
                self._close()
                raise LeaseTakenError(f"{self._path} is held by another process")
            time.sleep(POLL_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _take(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _close(self) -> None:
        # Close without unlocking, so that a child with the descriptor keeps the lock.
        os.close(self.descriptor)
        self.descriptor = -1


def device_leases() -> Path:
    """Return the folder of this user's device locks on this machine, which all studies share."""
    return Path(tempfile.gettempdir()) / f"lightning-perf-leases-{os.getuid()}"
