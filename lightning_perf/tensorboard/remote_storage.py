"""A folder behind a URL that fsspec understands: ``s3://``, ``gs://`` and others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, BinaryIO, cast

from lightning_perf.tensorboard.storage import MOST_FILES, Listing, StorageError, StoredFile, is_relevant

__all__ = ["RemoteStorage"]

_TIMES = ("LastModified", "mtime", "updated", "last_modified", "modified", "created")
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "generation")
"""What file systems call the time of change and the tag of the content (s3fs, gcsfs, adlfs, sftp, …)."""

_CREDENTIALS = re.compile(r"(?<=://)[^/@]*@")


class RemoteStorage:
    """A folder behind a URL. Credentials come from where its file system takes them: environment or configuration.

    Args:
        url: The URL, as ``s3://bucket/logs``.
    """

    is_remote = True

    def __init__(self, url: str) -> None:
        self.url = url
        self.location = _CREDENTIALS.sub("", url)

    def list_files(self) -> Listing:
        """List the relevant files below the root.

        Raises:
            StorageError: The file system is not installed, or refuses.
        """
        file_system, root = self._connect()
        try:
            file_system.invalidate_cache()  # it would go on to show the files of the first listing
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
            notes = (f"{self.location} holds more than {MOST_FILES:,} files; the others are left out.",)
        return Listing(tuple(files[:MOST_FILES]), notes)

    def open(self, path: str) -> BinaryIO:
        """Open a listed file.

        Raises:
            StorageError: It is gone, or the file system refuses.
        """
        file_system, root = self._connect()
        try:
            return cast(BinaryIO, file_system.open(f"{root.rstrip('/')}/{path}", "rb"))
        except Exception as error:
            raise StorageError(f"{path} cannot be read from {self.location} ({_reason(error)}).") from error

    def local_path(self, path: str) -> None:
        """Remote files have none."""

    def _connect(self) -> tuple[Any, str]:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise StorageError(f'{self.location} needs fsspec: pip install "lightning-perf[view]"') from error
        try:
            file_system, root = url_to_fs(self.url)
        except Exception as error:  # fsspec names the package to install
            raise StorageError(f"{self.location} cannot be reached ({_reason(error)}).") from error
        return file_system, root


def _is_plain(path: str) -> bool:
    """Whether a path has no part that would lead elsewhere once it is written to a disk."""
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
