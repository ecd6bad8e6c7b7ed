"""The jobs of the worker processes and their answers: the messages between the server and `documents.main`."""

from __future__ import annotations

from typing import TypeAlias

from lightning_perf.tensorboard.discovery import Run
from lightning_perf.workers.channel import Message


class Task(Message, frozen=True):
    """One document to make: the report of a run, or the comparison of a study.

    `places` are the folders that may keep it, the preferred one first. `fetched` is the folder for fetched files.
    """

    run: Run
    key: str
    places: tuple[str, ...]
    fetched: str


class DiffQuery(Message, frozen=True):
    """The changes from one report to another, by their files."""

    before: str
    after: str


class Working(Message, frozen=True):
    """The job waits or runs, with the finished share from 0 to 1."""

    done: float
    message: str


class Done(Message, frozen=True):
    """The document is in one of its folders, or `data` holds the comparison as JSON."""

    data: bytes = b""


class Failed(Message, frozen=True):
    """The job has no result. The HTTP status is 500 if it may work later, and another one if it would fail again."""

    message: str
    status: int = 422

    @property
    def may_pass(self) -> bool:
        """Whether it may work later with the same files."""
        return self.status == 500


Job: TypeAlias = Task | DiffQuery
Answer: TypeAlias = Working | Done | Failed
