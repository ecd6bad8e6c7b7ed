"""The user's cache folder: where it is, and how much it keeps."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

CACHE_VARIABLE = "LIGHTNING_PERF_CACHE"
"""Environment variable that names the user's cache folder."""

OFF = "off"
"""Value of the variable that turns the cache of columns off. Other files are then in the usual folder."""

SPARE_BYTES = 1 << 30
"""Free space that a large file in the cache leaves on the disk."""


def cache_root() -> Path:
    """Return the user's cache folder: ``$LIGHTNING_PERF_CACHE``, or that of the XDG base directory specification."""
    named = os.environ.get(CACHE_VARIABLE)
    if named and named != OFF:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else _home() / ".cache") / "lightning_perf"


def bound_folder(folder: Path, most_bytes: int) -> None:
    """Remove the least recently used files below a folder until the others take at most so many bytes."""
    stats = ((file_status(path), path) for path in folder.rglob("*"))
    files = sorted(((status.st_mtime, status.st_size, path) for status, path in stats if status), reverse=True)
    total = 0
    for _, size, path in files:
        total += size
        if total > most_bytes:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # the folder has other files
                path.parent.rmdir()


def is_own_folder(path: Path) -> bool:
    """Whether a path is a real folder of this user. A link could lead anywhere, and anybody can make one in ``/tmp``.

    Without users (not POSIX) no folder is.
    """
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and hasattr(os, "getuid") and status.st_uid == os.getuid()


def file_status(path: Path) -> os.stat_result | None:
    """Return the status of a regular file, or None for anything else."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def temporary_root() -> Path:
    """Return the folder that takes the place of a home folder."""
    return Path(tempfile.gettempdir()) / f"lightning_perf-{os.getuid()}"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user without a home folder, e.g. in a container
        return temporary_root()
