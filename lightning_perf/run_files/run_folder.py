"""The folder of a run: making one, and the marker files in it through which processes find each other."""

from __future__ import annotations

import errno
import itertools
import os
import socket
from contextlib import suppress
from pathlib import Path

from lightning_perf.run_files.atomic import replace_file

FOLDER_MARKER = ".lightning_perf"
"""An empty file that claims a folder. Other files may follow seconds later. Of two processes that start at the same
time, only one can make it."""

REQUEST_NAME = "profile-now"
"""The file that asks for a capture when it appears."""

START_NAME = ".profile-at"
"""The file in which rank 0 writes the step at which all ranks start a capture."""


_FULL_NAME = ".disk-full"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def mark_full_disk(folder: Path, error: BaseException) -> None:
    """Leave an empty file in the folder of a run if an error says that its disk is full. It takes no space."""
    if isinstance(error, OSError) and error.errno in _FULL:
        with suppress(OSError):
            (folder / _FULL_NAME).touch()


def full_disk_notes(folder: Path) -> list[str]:
    """Return a note if the disk was full when the run wrote its files."""
    note = (
        "The disk was full while this run wrote its files, so some of them are incomplete or missing. Free space, or "
        "choose another folder with dirpath, and train again."
    )
    return [note] if (folder / _FULL_NAME).exists() else []


def make_run_folder(path: str) -> Path:
    """Make a folder for a run, empty but for a hidden marker.

    Returns:
        `path` if nothing is there or an empty folder; else the first free of ``path_1``, ``path_2``, ….
    """
    if "://" in path:
        raise ValueError(f"{path} is not on this machine's file system")
    for number in itertools.count():
        folder = Path(path if not number else f"{path}_{number}").absolute()
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not folder.is_dir() or any(folder.iterdir()):
                continue
        try:
            (folder / FOLDER_MARKER).touch(exist_ok=False)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("unreachable")


class RankMarkers:
    """The files by which the ranks of a run show each other that they have written theirs.

    Each rank makes ``.rank3.running`` when the fit begins and renames it to ``.rank3.done`` when its files are written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, rank: int) -> None:
        """Mark this process as the one that runs a rank."""
        self._running(rank).write_text(f"{os.getpid()} {socket.gethostname()}", encoding="utf-8")

    def end(self, rank: int) -> None:
        """Mark a rank as done."""
        self._running(rank).replace(self._done(rank))

    def has_begun(self, rank: int) -> bool:
        """Whether a rank has begun, and perhaps ended, in this folder."""
        return self._running(rank).exists() or self._done(rank).exists()

    def has_ended(self, rank: int) -> bool:
        """Whether a rank is done."""
        return self._done(rank).exists()

    def is_dead(self, rank: int) -> bool:
        """Whether the process of a rank is gone; False if this machine cannot see that."""
        try:
            pid, host = self._running(rank).read_text(encoding="utf-8").split(maxsplit=1)
            if host != socket.gethostname():
                return False
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        except (OSError, ValueError):
            return False
        return False

    def dead(self) -> list[int]:
        """Return the ranks that did not end, and have no process on this machine any more."""
        names = [path.name.split(".")[1] for path in self._folder.glob(".rank*.running")]
        return sorted(rank for name in names if name[4:].isdecimal() and self.is_dead(rank := int(name[4:])))

    def remove(self, rank: int) -> None:
        """Remove the marker of a rank, as far as that is possible."""
        with suppress(OSError):
            self._done(rank).unlink(missing_ok=True)
            self._running(rank).unlink(missing_ok=True)

    def _running(self, rank: int) -> Path:
        return self._folder / f".rank{rank}.running"

    def _done(self, rank: int) -> Path:
        return self._folder / f".rank{rank}.done"


def take_capture_request(folder: Path) -> bool:
    """Remove the file ``profile-now``, and return whether it was there."""
    try:
        (folder / REQUEST_NAME).unlink()
    except OSError:  # it is missing, or not ours to delete: then it would be taken again and again
        return False
    return True


def write_capture_start(folder: Path, step: int) -> None:
    """Write the step at which all ranks start a capture."""
    replace_file(folder / START_NAME, str(step).encode())


def read_capture_start(folder: Path) -> int | None:
    """Read the last step that `write_capture_start` wrote; None without one."""
    try:
        return int((folder / START_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
