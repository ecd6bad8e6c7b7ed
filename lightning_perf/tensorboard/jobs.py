"""The jobs of the worker processes and their answers: the messages between the server and `worker.main`."""

from __future__ import annotations

from typing import TypeAlias

from lightning_perf.tensorboard.discovery import Run
from lightning_perf.tensorboard.excerpt import TableName
from lightning_perf.workers.channel import Message


class Task(Message, frozen=True):
    """One document to make: the report of a run, or the comparison of a study.

    Attributes:
        run: The run, of any kind except inference.
        key: The document's key in the cache.
        places: Folders that may keep the document, the preferred one first.
        fetched: The folder for fetched files.
    """

    run: Run
    key: str
    places: tuple[str, ...]
    fetched: str


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
    """The changes from one report to another, by their files."""

    before: str
    after: str


class Working(Message, frozen=True):
    """The job waits or runs.

    Attributes:
        done: The finished share, from 0 to 1.
        message: The current activity.
    """

    done: float
    message: str


class Done(Message, frozen=True):
    """The document is in one of its folders, or the query is answered with JSON in `data`."""

    data: bytes = b""


class Failed(Message, frozen=True):
    """The job has no result.

    Attributes:
        message: The reason, and how to fix it.
        status: HTTP status: 500 if it may work later, another one if it would fail again with the same files.
    """

    message: str
    status: int = 422

    @property
    def may_pass(self) -> bool:
        """Whether it may work later with the same files."""
        return self.status == 500


class Damaged(Message, frozen=True):
    """A query needs a file that is damaged or missing.

    Attributes:
        path: The file.
    """

    path: str


Query: TypeAlias = TableQuery | DiffQuery
Job: TypeAlias = Task | Query
Answer: TypeAlias = Working | Done | Failed | Damaged
