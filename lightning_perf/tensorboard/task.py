"""The messages between the server and the worker processes that make documents and answer queries."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from lightning_perf.tensorboard.cache import cache_root, places_of
from lightning_perf.tensorboard.discovery import Run
from lightning_perf.tensorboard.excerpt import TableName
from lightning_perf.tensorboard.storage import RemoteStorage, StoredFile
from lightning_perf.workers.channel import Message

__all__ = [
    "Answer",
    "Answered",
    "Damaged",
    "DiffQuery",
    "Done",
    "Failed",
    "Query",
    "Refused",
    "Reply",
    "SourceFile",
    "TableQuery",
    "Task",
    "Working",
    "make_task",
]


class SourceFile(msgspec.Struct, frozen=True):
    """A file to read.

    Attributes:
        path: Its path from the root of its storage.
        size_bytes: Its size.
        version: Its version.
        local: Its path on this machine, or None if it must be fetched.
    """

    path: str
    size_bytes: int
    version: str
    local: str | None


class Task(Message, frozen=True):
    """One document to make.

    Attributes:
        kind: ``"report"`` of a run, or ``"study"`` for a comparison.
        key: The document's key in the cache.
        location: The root of the storage, for messages.
        url: The same for the file system; None for local storage.
        folder: The run's folder in it.
        files: The run's files, starting with the traces.
        traces: Number of traces among the files.
        places: Folders that may keep the document, the preferred one first.
        fetched: The folder for fetched files.
    """

    kind: Literal["report", "study"]
    key: str
    location: str
    url: str | None
    folder: str
    files: tuple[SourceFile, ...]
    traces: int
    places: tuple[str, ...]
    fetched: str


class Working(Message, frozen=True):
    """The task waits or runs.

    Attributes:
        done: The finished share, from 0 to 1.
        message: The current activity.
    """

    done: float
    message: str


class Done(Message, frozen=True):
    """The document is in one of the folders."""


class Failed(Message, frozen=True):
    """The document cannot be made.

    Attributes:
        message: The reason, and how to fix it.
        lasting: Whether it would fail again with the same files.
    """

    message: str
    lasting: bool = True


Answer: TypeAlias = Working | Done | Failed


class TableQuery(Message, frozen=True):
    """Some rows of a long table. The fields are the arguments of `read_rows`.

    Attributes:
        report: The report's file.
        rank: The rank's index.
        table: The table.
        offset: Number of rows to skip.
        limit: Maximum number of rows.
        sort: The field to sort by, or None for the order of the report.
        descending: Whether the largest come first.
        wanted: Words that must occur in a row.
    """

    report: str
    rank: int
    table: TableName
    offset: int
    limit: int
    sort: str | None
    descending: bool
    wanted: str


class DiffQuery(Message, frozen=True):
    """The changes from one report to another.

    Attributes:
        before: The first report's file.
        after: The second report's file.
    """

    before: str
    after: str


class Answered(Message, frozen=True):
    """The answer to a query.

    Attributes:
        data: JSON.
    """

    data: bytes


class Refused(Message, frozen=True):
    """A query without an answer.

    Attributes:
        status: HTTP status.
        message: The reason, and how to fix it.
    """

    status: int
    message: str


class Damaged(Message, frozen=True):
    """A query needs a file that is damaged or missing.

    Attributes:
        path: The file.
    """

    path: str


Query: TypeAlias = TableQuery | DiffQuery
Reply: TypeAlias = Answered | Refused | Damaged


def make_task(run: Run, key: str) -> Task:
    """Return the task that makes a run's document.

    Args:
        run: The run, of any kind except inference.
        key: Its key.

    Raises:
        StorageError: A file is no longer below the root.
    """
    storage = run.storage
    return Task(
        kind="study" if run.kind == "study" else "report",
        key=key,
        location=storage.location,
        url=storage.url if isinstance(storage, RemoteStorage) else None,
        folder=run.folder,
        files=tuple(_source(run, file) for file in run.files),
        traces=len(run.traces),
        places=tuple(str(place) for place in places_of(run)),
        fetched=str(cache_root() / "fetched"),
    )


def _source(run: Run, file: StoredFile) -> SourceFile:
    local = run.storage.local_path(file.path)
    return SourceFile(file.path, file.size_bytes, file.version, str(local) if local is not None else None)
