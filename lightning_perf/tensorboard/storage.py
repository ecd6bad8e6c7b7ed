"""Where runs lie: a folder on this machine or behind a URL, seen through the same few operations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

__all__ = ["Listing", "Storage", "StorageError", "StoredFile", "is_relevant"]

MOST_FILES = 200_000
"""A listing ends here: nobody finds a run among more files by looking."""

RELEVANT_SUFFIXES = (".json", ".json.gz", ".jsonl")


class StorageError(Exception):
    """A storage cannot be read; the message says where, why, and what to do."""


@dataclass(frozen=True)
class StoredFile:
    """A file below a storage's root.

    Attributes:
        path: Its path from the root, parts joined by slashes.
        size_bytes: Its size.
        updated_s: When it was last changed, in seconds since 1970; 0.0 where the storage does not tell.
        version: Changes whenever the content does: the time of change, or the storage's ETag.
    """

    path: str
    size_bytes: int
    updated_s: float
    version: str

    @property
    def folder(self) -> str:
        """The folder it is in, empty for the root."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """Its name without the folder."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Listing:
    """The relevant files of a storage at one moment.

    Attributes:
        files: The files, sorted by path.
        notes: What a reader must know: links that were not followed, names that cannot be shown.
    """

    files: tuple[StoredFile, ...]
    notes: tuple[str, ...] = ()


class Storage(Protocol):
    """A root folder with everything below it.

    Attributes:
        location: The root, for people.
        is_remote: Whether files have to be fetched before they can be analysed.
    """

    location: str
    is_remote: bool

    def list_files(self) -> Listing:
        """List the relevant files.

        Raises:
            StorageError: The root cannot be listed.
        """
        ...

    def open(self, path: str) -> BinaryIO:
        """Open a listed file for reading.

        Raises:
            StorageError: It is not there any more, or is no regular file below the root.
        """
        ...

    def local_path(self, path: str) -> Path | None:
        """The path of a listed file on this machine; None when it has to be fetched.

        Raises:
            StorageError: It is not below the root any more.
        """
        ...


def is_relevant(path: str) -> bool:
    """Whether a file may belong to a run, by its path from the root. Hidden files and folders never do.

    Example:
        >>> is_relevant("fit/rank0.17.pt.trace.json.gz"), is_relevant(".git/x.json"), is_relevant("fit/weights.ckpt")
        (True, False, False)
    """
    return path.endswith(RELEVANT_SUFFIXES) and not any(part.startswith(".") for part in path.split("/"))
