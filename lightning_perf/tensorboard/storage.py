"""Access to log directories: local folders, and remote ones through fsspec."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from lightning_perf.project import install_command

__all__ = [
    "Listing",
    "LocalStorage",
    "RemoteStorage",
    "Storage",
    "StorageError",
    "StoredFile",
    "is_relevant",
]


MOST_FILES = 200_000
"""Maximum number of files in a listing."""

RELEVANT_SUFFIXES = (".json", ".json.gz", ".jsonl")


class StorageError(Exception):
    """A storage cannot be read. The message says where, why, and how to fix it."""


@dataclass(frozen=True)
class StoredFile:
    """A file below a storage's root.

    Attributes:
        path: Its path from the root, with slashes between the parts.
        size_bytes: Its size.
        updated_s: Time of the last change, in seconds since 1970; 0.0 if the storage does not provide it.
        version: A value that changes with the content: the time of change, or the storage's ETag.
    """

    path: str
    size_bytes: int
    updated_s: float
    version: str

    @property
    def folder(self) -> str:
        """Its folder; empty for the root."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """Its name without the folder."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Listing:
    """The relevant files of a storage at one point in time.

    Attributes:
        files: The files, sorted by path.
        notes: Notes for the reader: links that were not followed, names that cannot be shown.
    """

    files: tuple[StoredFile, ...]
    notes: tuple[str, ...] = ()


class Storage(Protocol):
    """A root folder with everything below it.

    Attributes:
        location: The root, for messages.
        is_remote: Whether files must be fetched before they can be analyzed.
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
            StorageError: It no longer exists, or is not a regular file below the root.
        """
        ...

    def local_path(self, path: str) -> Path | None:
        """Return the path of a listed file on this machine, or None if it must be fetched.

        Raises:
            StorageError: It is no longer below the root.
        """
        ...


def is_relevant(path: str) -> bool:
    """Whether a file may belong to a run, judged by its path from the root. Hidden files and folders never do.

    Example:
        >>> is_relevant("fit/rank0.17.pt.trace.json.gz"), is_relevant(".git/x.json"), is_relevant("fit/weights.ckpt")
        (True, False, False)
    """
    return path.endswith(RELEVANT_SUFFIXES) and not any(part.startswith(".") for part in path.split("/"))


NAMED_LINKS = 3
"""Maximum number of links in a note about links that lead out of the folder. The others are counted."""


class LocalStorage:
    """A folder on this machine.

    Symbolic links to files are followed if they stay below the root. Links to folders are not followed, because folders
    below the root are listed anyway.

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
            StorageError: The root exists but cannot be listed.
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
                notes.append(f"{self.location} has more than {MOST_FILES:,} files. The others are left out.")
                break
            path = entry.path[len(start) :]
            if not is_relevant(path):
                continue
            try:
                status = entry.stat()
            except OSError:
                continue  # removed since it was listed
            if not stat.S_ISREG(status.st_mode):
                continue
            files.append(StoredFile(path, status.st_size, status.st_mtime, str(status.st_mtime_ns)))
        unreadable = [file for file in files if not _is_text(file.path)]
        if unreadable:
            notes.append(f"{len(unreadable)} files are left out, because their names are not UTF-8.")
            files = [file for file in files if _is_text(file.path)]
        if outside:
            named = ", ".join(repr(path) for path in sorted(outside)[:NAMED_LINKS])
            more = f" and {len(outside) - NAMED_LINKS} more" if len(outside) > NAMED_LINKS else ""
            notes.append(
                f"Links that lead out of {self.location} are not followed: {named}{more}. "
                "To show these folders, name them in --logdir_spec."
            )
        return Listing(tuple(sorted(files, key=lambda file: file.path)), tuple(notes))

    def open(self, path: str) -> BinaryIO:
        """Open a listed file.

        Raises:
            StorageError: It no longer exists, or is no longer a regular file below the root.
        """
        real = self.local_path(path)
        try:
            # The path is resolved, so a link at this point was created after that, and is refused.
            descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"{path} cannot be read ({error.strerror}).") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise StorageError(f"{path} is not a regular file.")
        return os.fdopen(descriptor, "rb")

    def local_path(self, path: str) -> Path:
        """Return the real path of a listed file.

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
            continue  # not readable, or removed
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif not entry.is_symlink() or _leads_inside(entry, real_root, outside):
                yield entry


def _leads_inside(link: os.DirEntry[str], real_root: Path, outside: list[str]) -> bool:
    target = os.path.realpath(link.path)  # for links in a circle this is one of them, and it has no status
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


_TIMES = ("LastModified", "mtime", "updated", "last_modified", "modified", "created")
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "generation")
"""Names of the time of change and of the content's tag in various file systems (s3fs, gcsfs, adlfs, sftp, …)."""

_CREDENTIALS = re.compile(r"(?<=://)[^/@]*@")


class RemoteStorage:
    """A folder with a URL. Its file system finds credentials in the environment or its configuration.

    Args:
        url: The URL, e.g. ``s3://bucket/logs``.
    """

    is_remote = True

    def __init__(self, url: str) -> None:
        self.url = url
        self.location = _CREDENTIALS.sub("", url)

    def list_files(self) -> Listing:
        """List the relevant files below the root.

        Raises:
            StorageError: The package of the file system is not installed, or the request fails.
        """
        file_system, root = self._connect()
        try:
            file_system.invalidate_cache()  # without this it keeps showing the first listing
            found = file_system.find(root, detail=True)
        except Exception as error:
            raise StorageError(
                f"{self.location} cannot be listed ({_reason(error)}). Check its credentials."
            ) from error
        prefix = root.rstrip("/") + "/"
        files = [
            _stored(name[len(prefix) :], details)
            for name, details in found.items()
            if name.startswith(prefix) and _is_plain(name[len(prefix) :]) and details.get("type", "file") == "file"
        ]
        files.sort(key=lambda file: file.path)
        notes: tuple[str, ...] = ()
        if len(files) > MOST_FILES:
            notes = (f"{self.location} has more than {MOST_FILES:,} files. The others are left out.",)
        return Listing(tuple(files[:MOST_FILES]), notes)

    def open(self, path: str) -> BinaryIO:
        """Open a listed file.

        Raises:
            StorageError: It no longer exists, or the request fails.
        """
        file_system, root = self._connect()
        try:
            return cast(BinaryIO, file_system.open(f"{root.rstrip('/')}/{path}", "rb"))
        except Exception as error:
            raise StorageError(f"{path} cannot be read from {self.location} ({_reason(error)}).") from error

    def local_path(self, path: str) -> None:
        """Return None, because remote files have no local path."""

    def _connect(self) -> tuple[Any, str]:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise StorageError(f"{self.location} needs fsspec. Install it with: {install_command('view')}") from error
        try:
            file_system, root = url_to_fs(self.url)
        except Exception as error:  # fsspec's message names the package to install
            raise StorageError(f"{self.location} cannot be reached ({_reason(error)}).") from error
        return file_system, root


def _is_plain(path: str) -> bool:
    """Whether a path is safe to write to a disk, without parts that lead to another folder."""
    parts = path.split("/")
    return is_relevant(path) and all(part not in ("", ".", "..") and "\\" not in part for part in parts)


def _stored(path: str, details: Mapping[str, Any]) -> StoredFile:
    time = next((details[key] for key in _TIMES if details.get(key)), 0.0)
    version = next((details[key] for key in _VERSIONS if details.get(key)), time)
    return StoredFile(path, int(details.get("size") or 0), _seconds(time), str(version))


def _seconds(time: Any) -> float:
    try:
        if isinstance(time, datetime):
            return time.timestamp()
        if isinstance(time, str):
            return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()
        return float(time)
    except (TypeError, ValueError):
        return 0.0


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {_CREDENTIALS.sub('', str(error))}"
