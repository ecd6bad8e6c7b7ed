"""Where finished documents and fetched files are kept, and under which keys.

A document is kept in the folder ``.lightning_perf_cache`` next to the data it was made from, so that it moves and is
deleted with them and other users can read it. If that folder cannot be written, or the data are remote, the document
goes to the user's cache folder.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from lightning_perf import __version__
from lightning_perf.report.document import SCHEMA_VERSION
from lightning_perf.run_files.atomic import atomic_file
from lightning_perf.run_files.report import REPORT_NAME
from lightning_perf.tensorboard.discovery import Run
from lightning_perf.tensorboard.storage import StorageError, StoredFile

__all__ = ["CACHE_VARIABLE", "Document", "bound_folder", "cache_root", "find", "key_of", "places_of", "write"]

CACHE_VARIABLE = "LIGHTNING_PERF_CACHE"
"""Environment variable that names the user's cache folder."""

BESIDE = ".lightning_perf_cache"
"""A folder beside the data. Its name differs from the marker file that `PerfCallback` leaves there."""
LAYOUT_VERSION = 1
"""Raised when documents in the cache change their meaning although neither the report's schema nor the tool did."""

SETTLED_S = 300.0
GROWTH = 1.25
"""A log that is being written makes a document outdated by growing by a quarter, not with every step."""

MOST_DOCUMENT_BYTES = 1 << 30
"""Documents in the user's cache folder may take so much; beside the data they vanish with them."""

Document = Literal["report", "page", "study"]
"""``report`` is the whole report, ``page`` what the page gets of it, ``study`` a comparison."""


def key_of(run: Run, now_s: float | None = None) -> str:
    """The key of a run's documents: it changes when its files do, or what reads them.

    Args:
        run: The run.
        now_s: The time, in seconds since 1970; the present one when not given.
    """
    now_s = time.time() if now_s is None else now_s
    ended = any(file.name == REPORT_NAME for file in run.others)
    parts = (
        LAYOUT_VERSION,
        SCHEMA_VERSION,
        __version__,
        run.kind,
        [(file.path[len(run.folder) :].lstrip("/"), *_content(file, run, ended, now_s)) for file in run.files],
    )
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:24]


def _content(file: StoredFile, run: Run, ended: bool, now_s: float) -> tuple[int, str]:
    growing = file.name.endswith(".jsonl") and run.kind == "run" and not ended
    if growing and now_s - file.updated_s < SETTLED_S:
        return math.floor(math.log(file.size_bytes + 1, GROWTH)), "growing"
    return file.size_bytes, file.version


def places_of(run: Run) -> tuple[Path, ...]:
    """The folders that may keep a run's documents, the first choice first."""
    name = hashlib.sha256(f"{run.storage.location}\n{run.folder}\n{run.kind}".encode()).hexdigest()[:24]
    places = [cache_root() / "documents" / name, _temporary() / "documents" / name]
    try:
        folder = run.storage.local_path(run.folder)
    except StorageError:
        folder = None
    return tuple([folder / BESIDE, *places] if folder is not None else places)


def cache_root() -> Path:
    """The user's cache folder: ``$LIGHTNING_PERF_CACHE``, or by the XDG base directory specification."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else _home() / ".cache") / "lightning_perf"


def find(run: Run, key: str, document: Document) -> Path | None:
    """A finished document in one of the run's places."""
    paths = (place / f"{key}.{document}" for place in places_of(run) if _is_own_folder(place))
    return next((path for path in paths if _status(path) is not None), None)


def write(places: Sequence[Path], key: str, documents: Sequence[tuple[Document, bytes]]) -> Path:
    """Write documents to the first folder that takes them, each whole or not at all, and remove outdated ones.

    Args:
        places: The folders, the first choice first.
        key: Their key.
        documents: What to write, in this order.

    Returns:
        The folder that took them.

    Raises:
        OSError: None of the folders can be written.
    """
    fault: OSError | None = None
    for place in places:
        if place.name == BESIDE and not _is_writable(place.parent):
            continue
        try:
            place.mkdir(mode=0o755 if place.name == BESIDE else 0o700, parents=place.name != BESIDE, exist_ok=True)
            if not _is_own_folder(place):
                continue
            for document, data in documents:
                with atomic_file(place / f"{key}.{document}", mode=0o644) as file:
                    file.write(data)
        except OSError as error:
            fault = error
            continue
        written = {document for document, _ in documents}
        for old in place.iterdir():
            if old.suffix[1:] in written and old.stem != key:
                old.unlink(missing_ok=True)
        if place.name != BESIDE:
            bound_folder(place.parent, MOST_DOCUMENT_BYTES)
        return place
    raise fault or OSError("no folder can be written")


def bound_folder(folder: Path, most_bytes: int) -> None:
    """Remove the files below a folder that were not used for longest, until the others take at most so many bytes."""
    stats = ((_status(path), path) for path in folder.rglob("*"))
    files = sorted(((status.st_mtime, status.st_size, path) for status, path in stats if status), reverse=True)
    total = 0
    for _, size, path in files:
        total += size
        if total > most_bytes:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # the folder holds more
                path.parent.rmdir()


def _is_own_folder(path: Path) -> bool:
    """Whether this is a real folder (a link could lead anywhere), and this user's: in ``/tmp`` anybody could make it.

    That beside the data is theirs who may write there.
    """
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and (path.name == BESIDE or status.st_uid == os.getuid())


def _is_writable(folder: Path) -> bool:
    """Whether anybody may write to a folder: root could anyway, but who made it read-only meant root too."""
    try:
        return bool(folder.stat().st_mode & 0o222)
    except OSError:
        return False


def _status(path: Path) -> os.stat_result | None:
    """The status of a regular file; None for anything else."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user without a home, as in some containers
        return _temporary()


def _temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"lightning_perf-{os.getuid()}"
