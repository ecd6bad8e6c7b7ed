"""Read the files of a dataset from a folder, or from a zip without unpacking it."""

from __future__ import annotations

import os
import threading
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Protocol

from recipes.signlang.errors import RecipeError

MAX_FILE_BYTES = 512 * 1024**2
"""Largest file of a dataset: a small zip member can inflate to any size."""


class Source(Protocol):
    """Files by name."""

    path: Path

    def names(self) -> list[str]:
        """Return the sorted names relative to the root, with forward slashes, without hidden files and folders."""

    def size_bytes(self, name: str) -> int:
        """Return the uncompressed size of a file."""

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            OSError: The file cannot be read, is damaged, or is larger than `MAX_FILE_BYTES`.
        """

    def locate(self, name: str) -> str:
        """Return the location of a file, for messages."""


class Folder:
    """A folder of files.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """See `Source.names`."""
        found = []
        for folder, subfolders, files in os.walk(self.path, onerror=_refuse):
            subfolders[:] = [name for name in subfolders if not _is_junk(name)]
            root = Path(folder).relative_to(self.path)
            found += [(root / name).as_posix() for name in files if not _is_junk(name)]
        return sorted(found)

    def size_bytes(self, name: str) -> int:
        """See `Source.size_bytes`."""
        return (self.path / name).stat().st_size

    def read(self, name: str) -> bytes:
        """See `Source.read`."""
        with (self.path / name).open("rb") as file:
            return _bounded(file.read(MAX_FILE_BYTES + 1))

    def locate(self, name: str) -> str:
        """See `Source.locate`."""
        return str(self.path / name)


class Archive:
    """A zip file. Its members are read into memory; their names are never used as paths.

    Args:
        path: The zip file.

    Raises:
        RecipeError: The file is not a zip file, is damaged, or is encrypted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError) as error:
            problem = f"neither a folder nor a readable zip file ({error})"
            raise RecipeError(
                path, problem, "Name the data set's folder or zip; download a damaged one again"
            ) from error
        self._members = {info.filename: info for info in self._zip.infolist() if not info.is_dir()}
        if any(info.flag_bits & 0x1 for info in self._members.values()):
            raise RecipeError(path, "the zip file is encrypted", "Unpack it yourself and name the folder")
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """See `Source.names`."""
        return sorted(name for name in self._members if not any(_is_junk(part) for part in PurePosixPath(name).parts))

    def size_bytes(self, name: str) -> int:
        """See `Source.size_bytes`."""
        return self._members[name].file_size

    def read(self, name: str) -> bytes:
        """See `Source.read`."""
        try:
            # The declared size may be wrong, so check the size of the content.
            with self._lock, self._zip.open(self._members[name]) as file:
                return _bounded(file.read(MAX_FILE_BYTES + 1))
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise OSError(str(error) or "damaged member of the zip file") from error

    def locate(self, name: str) -> str:
        """See `Source.locate`."""
        return f"{self.path}:{name}"


def open_source(path: Path) -> Source:
    """Open a folder or a zip file.

    Args:
        path: The folder or zip file.

    Raises:
        RecipeError: The path does not exist, or is neither a folder nor a zip file.
    """
    if path.is_dir():
        return Folder(path)
    if path.exists():
        return Archive(path)
    raise RecipeError(path, "no such file or folder", "Name the folder of the data set or its zip file with --data")


def _refuse(error: OSError) -> None:
    """Raise an error for a folder that cannot be listed; it would otherwise count as empty."""
    raise RecipeError(error.filename, f"cannot be listed ({error.strerror})", "Make it readable, or move it away")


def _is_junk(part: str) -> bool:
    """Say whether a path component is a hidden file, a macOS resource fork, or ``..`` in a zip."""
    return part.startswith(".") or part == "__MACOSX"


def _bounded(content: bytes) -> bytes:
    if len(content) > MAX_FILE_BYTES:
        raise OSError(f"larger than {MAX_FILE_BYTES // 1024**2} MB")
    return content
