"""Provide the files of a task on this machine. Remote files are copied into the cache first."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lightning_perf.run_files.atomic import atomic_file
from lightning_perf.tensorboard.cache import bound_folder
from lightning_perf.tensorboard.storage import RemoteStorage, StorageError
from lightning_perf.tensorboard.task import SourceFile, Task

__all__ = ["fetch"]

MOST_FETCHED_BYTES = 16 << 30
"""Maximum size of all fetched files. Beyond it, the least recently used ones are removed."""

SPARE_BYTES = 1 << 30
"""Free space that fetching leaves on the disk."""

CHUNK_BYTES = 4 << 20


def fetch(task: Task, tell: Callable[[float, str], None]) -> list[Path]:
    """Make sure that all files of a task are on this machine.

    Args:
        task: The task.
        tell: Called with the finished share and a message.

    Returns:
        Their paths, in the order of the task's files. A fetched file keeps its name, which identifies rank and window.

    Raises:
        StorageError: A file cannot be fetched, or the disk has no room for it.
    """
    if task.url is None:
        return [Path(file.local) for file in task.files if file.local is not None]
    storage = RemoteStorage(task.url)
    folder = Path(task.fetched)
    paths = [_place(folder, task.url, file) for file in task.files]
    missing = [(file, path) for file, path in zip(task.files, paths, strict=True) if not path.exists()]
    for path in paths:
        if path.exists():
            os.utime(path)
    total = sum(file.size_bytes for file, _ in missing)
    _make_room(folder, total, task.files)
    done = 0
    for number, (file, path) in enumerate(missing, 1):
        message = f"fetching file {number} of {len(missing)}, {total / 1e6:,.0f} MB in total"
        for size in _copy(storage, file, path):
            done += size
            tell(done / total if total else 1.0, message)
    return paths


def _place(folder: Path, url: str, file: SourceFile) -> Path:
    identity = f"{url}\n{file.path}\n{file.size_bytes}\n{file.version}"
    return folder / hashlib.sha256(identity.encode()).hexdigest()[:32] / file.path.rpartition("/")[2]


def _make_room(folder: Path, wanted_bytes: int, files: Sequence[SourceFile]) -> None:
    run_bytes = sum(file.size_bytes for file in files)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        bound_folder(folder, max(0, MOST_FETCHED_BYTES - wanted_bytes))
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise StorageError(
            f"Cannot fetch files to {folder} ({error.strerror}). Set LIGHTNING_PERF_CACHE to another folder."
        ) from error
    if run_bytes > MOST_FETCHED_BYTES or wanted_bytes > free_bytes - SPARE_BYTES:
        room = min(MOST_FETCHED_BYTES, max(free_bytes - SPARE_BYTES, 0))
        raise StorageError(
            f"The run's files take {run_bytes / 1e9:.1f} GB, but {folder} has room for {room / 1e9:.1f} GB only. "
            "Free some space, set LIGHTNING_PERF_CACHE to another folder, or copy the run to a local folder."
        )


def _copy(storage: RemoteStorage, file: SourceFile, path: Path) -> Iterator[int]:
    """Copy a file atomically, and yield the size of each part."""
    size = 0
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with storage.open(file.path) as source, atomic_file(path) as target:
            while chunk := source.read(CHUNK_BYTES):
                target.write(chunk)
                size += len(chunk)
                yield len(chunk)
            if size != file.size_bytes:
                raise StorageError(f"{file.path} changed while it was fetched. Open the run again.")
    except StorageError:
        raise
    except Exception as error:  # each file system has its own exceptions
        raise StorageError(f"{file.path} cannot be fetched ({type(error).__name__}: {error}).") from error
