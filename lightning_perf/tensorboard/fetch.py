"""Provide the files of a run on this machine. Remote files are copied into the cache first."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from lightning_perf.run_files.atomic import atomic_file
from lightning_perf.run_files.user_cache import SPARE_BYTES, bound_folder
from lightning_perf.tensorboard.discovery import Run
from lightning_perf.tensorboard.storage import Storage, StorageError, StoredFile

MOST_FETCHED_BYTES = 16 << 30
"""Maximum size of all fetched files. Beyond it, the least recently used ones are removed."""

CHUNK_BYTES = 4 << 20


def fetch(
    run: Run, folder: Path, on_progress: Callable[[float, str], None], most_bytes: int = MOST_FETCHED_BYTES
) -> list[Path]:
    """Make sure that all files of a run are on this machine, and return their paths.

    A fetched file keeps its name, which identifies rank and window.

    Raises:
        StorageError: A file cannot be fetched, or the disk has no room for it.
    """
    if not run.storage.is_remote:
        return [run.storage.local_path(file.path) for file in run.files]
    paths = {file: _place(folder, run.storage, file) for file in run.files}
    missing = {file: path for file, path in paths.items() if not path.exists()}
    for file in paths.keys() - missing.keys():
        os.utime(paths[file])
    total = sum(file.size_bytes for file in missing)
    _make_room(folder, total, sum(file.size_bytes for file in paths), most_bytes)
    done = 0
    for number, (file, path) in enumerate(missing.items(), 1):
        message = f"fetching file {number} of {len(missing)}, {total / 1e6:,.0f} MB in total"
        for size in _copy(run.storage, file, path):
            done += size
            on_progress(done / total if total else 1.0, message)
    return list(paths.values())


def _place(folder: Path, storage: Storage, file: StoredFile) -> Path:
    identity = f"{storage.url}\n{file.path}\n{file.size_bytes}\n{file.version}"
    return folder / hashlib.sha256(identity.encode()).hexdigest()[:32] / file.name


def _make_room(folder: Path, wanted_bytes: int, run_bytes: int, most_bytes: int) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        bound_folder(folder, max(0, most_bytes - wanted_bytes))
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise StorageError(
            f"Cannot fetch files to {folder} ({error.strerror}). Set LIGHTNING_PERF_CACHE to another folder."
        ) from error
    if run_bytes > most_bytes or wanted_bytes > free_bytes - SPARE_BYTES:
        room = min(most_bytes, max(free_bytes - SPARE_BYTES, 0))
        raise StorageError(
            f"The run's files take {run_bytes / 1e9:.1f} GB, but {folder} has room for {room / 1e9:.1f} GB only. "
            "Free some space, set LIGHTNING_PERF_CACHE to another folder, or copy the run to a local folder."
        )


def _copy(storage: Storage, file: StoredFile, path: Path) -> Iterator[int]:
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
