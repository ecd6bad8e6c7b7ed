"""Access to log directories: a folder of this machine, or any URL that fsspec opens."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from msgspec import Struct

from lightning_perf.lazy_imports import install_command

MOST_FILES = 200_000
"""Maximum number of files in a listing."""

RELEVANT_SUFFIXES = (".json", ".json.gz", ".jsonl")

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:::[A-Za-z][A-Za-z0-9+.-]*)*://")
"""A URL, or a chain of URLs for fsspec (``simplecache::s3://``)."""

NAMED_LINKS = 3
"""Maximum number of links in a note about links that lead out of the folder. The others are counted."""

_TIMES = ("LastModified", "mtime", "updated", "last_modified", "modified", "created")
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "generation")
"""Names of the time of change and of the content's tag in various file systems (s3fs, gcsfs, adlfs, sftp, …)."""

_CREDENTIALS = re.compile(r"(?<=://)[^/@]*@")


class StorageError(Exception):
    """A storage cannot be read. The message says where, why, and how to fix it."""


class StoredFile(Struct, frozen=True):
    """A file below a storage's root.

    Attributes:
        path: Its path from the root, with slashes between the parts.
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


def storage_at(address: str) -> Storage:
    """Return the storage at a path or URL."""
    address = address.removeprefix("file://")
    return Storage(address if URL.match(address) else str(Path(address).expanduser().absolute()))


class Storage(Struct, frozen=True):
    """A root folder with everything below it.

    Links to files on this machine are followed if they stay below the root. Links to folders are not followed, because
    folders below the root are listed anyway. The file system of a URL finds credentials in its usual places.

    Attributes:
        url: The URL with its credentials, or the absolute path of a folder on this machine, which may not exist yet.
    """

    url: str

    @property
    def is_remote(self) -> bool:
        """Whether files must be fetched before they can be analyzed."""
        return not self.url.startswith("/")

    @property
    def location(self) -> str:
        """The root for messages, without credentials."""
        return _CREDENTIALS.sub("", self.url) if self.is_remote else self.url

    def list_files(self, most_files: int = MOST_FILES) -> tuple[list[StoredFile], list[str]]:
        """Return the relevant files, sorted by path, and notes for the reader, e.g. on links that were not followed."""
        if not self.is_remote and not Path(self.url).exists():
            return [], [f"{self.location} does not exist yet."]
        outside: list[str] = []
        found = _remote_files(self) if self.is_remote else _local_files(self, outside)
        files = list(islice(found, most_files + 1))
        notes = []
        if len(files) > most_files:
            files.pop()
            notes.append(f"{self.location} has more than {most_files:,} files. The others are left out.")
        named = [file for file in files if file.path.encode(errors="ignore").decode() == file.path]
        if len(named) < len(files):
            notes.append(f"{len(files) - len(named)} files are left out, because their names are not UTF-8.")
        if outside:
            links = ", ".join(repr(path) for path in sorted(outside)[:NAMED_LINKS])
            more = f" and {len(outside) - NAMED_LINKS} more" if len(outside) > NAMED_LINKS else ""
            notes.append(
                f"Links that lead out of {self.location} are not followed: {links}{more}. "
                "To show these folders, name them in --logdir_spec."
            )
        return sorted(named, key=lambda file: file.path), notes

    def open(self, path: str) -> BinaryIO:
        """Open a listed file, or raise a `StorageError` if it is gone or not a regular file below the root."""
        if self.is_remote:
            file_system, root = _connect(self)
            try:
                return cast(BinaryIO, file_system.open(f"{root.rstrip('/')}/{path}", "rb"))
            except Exception as error:
                raise StorageError(f"{path} cannot be read from {self.location} ({_reason(error)}).") from error
        try:
            # The path is resolved, so a link at this point was created after that, and is refused.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self.local_path(path), flags)
        except OSError as error:
            raise StorageError(f"{path} cannot be read ({error.strerror}).") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise StorageError(f"{path} is not a regular file.")
        return os.fdopen(descriptor, "rb")

    def local_path(self, path: str) -> Path:
        """Return the real path of a listed file on this machine, or raise a `StorageError` if it leads out."""
        root = os.path.realpath(self.url)
        real = os.path.realpath(os.path.join(root, path))  # noqa: PTH118  (Path would accept an absolute path too)
        if os.path.commonpath([root, real]) != root:
            raise StorageError(f"{path} leads out of {self.location}.")
        return Path(real)


def is_relevant(path: str) -> bool:
    """Whether a file may belong to a run, judged by its path from the root. Hidden files and folders never do.

    Example:
        >>> is_relevant("fit/rank0.17.pt.trace.json.gz"), is_relevant(".git/x.json"), is_relevant("fit/weights.ckpt")
        (True, False, False)
    """
    return path.endswith(RELEVANT_SUFFIXES) and not any(part.startswith(".") for part in path.split("/"))


def _local_files(storage: Storage, outside: list[str]) -> Iterator[StoredFile]:
    """Yield the relevant files on this machine, and collect the links that lead out of the root in `outside`."""
    root = Path(os.path.realpath(storage.url))
    try:
        os.scandir(root).close()
    except OSError as error:
        reason = f"{storage.location} cannot be listed ({error.strerror}). Check its permissions."
        raise StorageError(reason) from error
    start = str(root).rstrip("/") + "/"
    for entry in _walk(root, outside):
        path = entry.path[len(start) :]
        if not is_relevant(path):
            continue
        try:
            status = entry.stat()
        except OSError:
            continue  # removed since it was listed
        if stat.S_ISREG(status.st_mode):
            yield StoredFile(path, status.st_size, status.st_mtime, str(status.st_mtime_ns))


def _walk(root: Path, outside: list[str]) -> Iterator[os.DirEntry[str]]:
    folders = [str(root)]
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
            elif not entry.is_symlink() or os.path.commonpath([root, os.path.realpath(entry.path)]) == str(root):
                yield entry
            else:
                outside.append(str(Path(entry.path).relative_to(root)))


def _remote_files(storage: Storage) -> Iterable[StoredFile]:
    """Return the relevant files below a URL, with one request for many folders."""
    file_system, root = _connect(storage)
    try:
        file_system.invalidate_cache()  # without this it keeps showing the first listing
        found = file_system.find(root, detail=True)
    except Exception as error:
        reason = f"{storage.location} cannot be listed ({_reason(error)}). Check its credentials."
        raise StorageError(reason) from error
    prefix = root.rstrip("/") + "/"
    return [
        _stored(name[len(prefix) :], details)
        for name, details in sorted(found.items())
        if name.startswith(prefix) and _is_plain(name[len(prefix) :]) and details.get("type", "file") == "file"
    ]


def _connect(storage: Storage) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise StorageError(f"{storage.location} needs fsspec. Install it with: {install_command('view')}") from error
    try:
        file_system, root = url_to_fs(storage.url)
    except Exception as error:  # fsspec's message names the package to install
        raise StorageError(f"{storage.location} cannot be reached ({_reason(error)}).") from error
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
