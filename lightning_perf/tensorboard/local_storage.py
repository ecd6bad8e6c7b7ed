"""A folder on this machine. Nothing outside it is ever read, whatever links it holds."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from lightning_perf.tensorboard.storage import MOST_FILES, Listing, StorageError, StoredFile, is_relevant

__all__ = ["LocalStorage"]

NAMED_LINKS = 3
"""So many links that lead out of the folder are named; the others are counted."""


class LocalStorage:
    """A folder on this machine.

    Symbolic links to files are followed while they stay below the root; links to folders are not, since what they
    name below the root is listed in its own place.

    Args:
        root: The folder. It need not exist yet.
    """

    is_remote = False

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).expanduser().absolute()
        self.location = str(self.root)

    def list_files(self) -> Listing:
        """List the relevant files below the root.

        Raises:
            StorageError: The root is there and cannot be listed.
        """
        real_root = Path(os.path.realpath(self.root))
        try:
            os.scandir(real_root).close()
        except FileNotFoundError:
            return Listing((), (f"{self.location} does not exist yet.",))
        except OSError as error:
            raise StorageError(
                f"{self.location} cannot be listed ({error.strerror}). Check its permissions."
            ) from error
        files: list[StoredFile] = []
        notes: list[str] = []
        outside: list[str] = []
        start = str(real_root).rstrip("/") + "/"
        for entry in _walk(real_root, outside):
            if len(files) == MOST_FILES:
                notes.append(f"{self.location} holds more than {MOST_FILES:,} files; the others are left out.")
                break
            path = entry.path[len(start) :]
            if not is_relevant(path):
                continue
            try:
                status = entry.stat()
            except OSError:
                continue  # gone since it was listed
            if not stat.S_ISREG(status.st_mode):
                continue
            files.append(StoredFile(path, status.st_size, status.st_mtime, str(status.st_mtime_ns)))
        unreadable = [file for file in files if not _is_text(file.path)]
        if unreadable:
            notes.append(f"{len(unreadable)} files are left out: their names are not UTF-8.")
            files = [file for file in files if _is_text(file.path)]
        if outside:
            named = ", ".join(repr(path) for path in sorted(outside)[:NAMED_LINKS])
            more = f" and {len(outside) - NAMED_LINKS} more" if len(outside) > NAMED_LINKS else ""
            notes.append(
                f"Links that lead out of {self.location} are not followed: {named}{more}. "
                "Name the folders themselves with --logdir_spec."
            )
        return Listing(tuple(sorted(files, key=lambda file: file.path)), tuple(notes))

    def open(self, path: str) -> BinaryIO:
        """Open a listed file.

        Raises:
            StorageError: It is gone, or not a regular file below the root any more.
        """
        real = self.local_path(path)
        try:
            # The path is resolved, so a link found here was put in its place just now.
            descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"{path} cannot be read ({error.strerror}).") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise StorageError(f"{path} is no regular file.")
        return os.fdopen(descriptor, "rb")

    def local_path(self, path: str) -> Path:
        """The real path of a listed file.

        Raises:
            StorageError: It leads out of the root.
        """
        real_root = os.path.realpath(self.root)
        real = os.path.realpath(os.path.join(real_root, path))  # noqa: PTH118  (Path would accept an absolute path too)
        if os.path.commonpath([real_root, real]) != real_root:
            raise StorageError(f"{path} leads out of {self.location}.")
        return Path(real)


def _walk(real_root: Path, outside: list[str]) -> Iterator[os.DirEntry[str]]:
    folders = [str(real_root)]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:
            continue  # not ours to read, or gone
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif not entry.is_symlink() or _leads_inside(entry, real_root, outside):
                yield entry


def _leads_inside(link: os.DirEntry[str], real_root: Path, outside: list[str]) -> bool:
    target = os.path.realpath(link.path)  # of links in a circle this is one of them, which has no status
    if os.path.commonpath([str(real_root), target]) == str(real_root):
        return True
    outside.append(str(Path(link.path).relative_to(real_root)))
    return False


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
