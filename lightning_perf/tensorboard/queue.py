"""The queue of jobs, and their messages: documents to make, and finished reports to compare. Each has a worker process.

One document is made at a time, so that training keeps the machine. While one takes long, those of small runs pass it.
Comparisons do not wait for documents, because their readers wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from lightning_perf.tensorboard.discovery import Run
from lightning_perf.workers.channel import Message
from lightning_perf.workers.process import WorkerError, WorkerProcess, WorkerUnwantedError


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


ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "PYTHONSAFEPATH": "1",
}
"""Environment of a worker process. It uses one thread, because training needs the cores."""

SMALL_BYTES = 64 << 20
"""Maximum size of a small run's files together."""

MOST_KEPT = 200
"""Maximum number of answers that are remembered."""

Lane: TypeAlias = Literal["runs", "small runs", "comparisons"]
"""Jobs that are done one after another."""


@dataclass(eq=False)
class _Entry:
    job: Job
    asked_s: float
    answer: Answer
    begun: bool = False
    ended_s: float | None = None
    ended: threading.Event = field(default_factory=threading.Event)


class Queue:
    """Does jobs in worker processes, each one once however often it is asked for.

    Args:
        busy_s: After this time with one document, it does not hold up small runs any more.
        abandoned_s: A job is not started, and its worker process is stopped, if nobody has asked for it within this
            time. Browsers let a hidden page ask only once per minute.
        stalled_s: A worker process without progress for this time is stopped.
    """

    def __init__(
        self,
        target: str = "lightning_perf.tensorboard.documents:main",
        *,
        busy_s: float = 10.0,
        wait_s: float = 2.0,
        abandoned_s: float = 180.0,
        retry_s: float = 30.0,
        stalled_s: float = 900.0,
    ) -> None:
        self._target = target
        self.busy_s, self.wait_s, self.abandoned_s = busy_s, wait_s, abandoned_s
        self.retry_s, self.stalled_s = retry_s, stalled_s
        self.lanes: dict[Lane, float] = {}  # time when the current job of each began
        self._entries: dict[Hashable, _Entry] = {}
        self._lock = threading.Lock()

    def ask(self, job: Job) -> Answer:
        """Request a job, or return the progress or the answer of an earlier request.

        A document that failed is tried again with other files, or after a while if the reason may pass.
        """
        now = time.monotonic()
        with self._lock:
            self._drop_expired(now)
            entry = self._entries.get(_identity(job)) or self._add(job, now)
            entry.asked_s = now
            lane = None if entry.begun else self._idle_lane(job, now)
            if lane is not None:
                self.lanes[lane] = now
                threading.Thread(target=self._work, args=(lane,), name=f"lightning_perf {lane}", daemon=True).start()
        if not isinstance(job, Task):
            entry.ended.wait(self.wait_s)
        with self._lock:
            remembered = isinstance(job, Task) and isinstance(entry.answer, Failed)
            if entry.ended_s is not None and not remembered:
                self._forget(entry)
            return entry.answer

    def _add(self, job: Job, now: float) -> _Entry:
        if isinstance(job, Task):
            for other in list(self._entries.values()):  # a fit changes its files all the time
                if isinstance(other.job, Task) and not other.begun and _run_of(other.job) == _run_of(job):
                    self._forget(other)
            message = "waiting for another analysis to finish" if "runs" in self.lanes else "starting"
        else:
            message = "reading the reports"
        entry = self._entries[_identity(job)] = _Entry(job, now, Working(0.0, message))
        return entry

    def _forget(self, entry: _Entry) -> None:
        if self._entries.get(_identity(entry.job)) is entry:
            del self._entries[_identity(entry.job)]

    def _drop_expired(self, now: float) -> None:
        ended = [entry for entry in self._entries.values() if entry.ended_s is not None]
        for entry in ended[: max(0, len(self._entries) - MOST_KEPT)]:
            self._forget(entry)
        for entry in list(self._entries.values()):
            if entry.ended_s is not None and isinstance(entry.job, Task):
                lasting = isinstance(entry.answer, Failed) and not entry.answer.may_pass
                expired = not lasting and now - entry.ended_s >= self.retry_s
            else:
                running = entry.begun and entry.ended_s is None
                expired = not running and now - entry.asked_s > self.abandoned_s
            if expired:
                self._forget(entry)

    def _idle_lane(self, job: Job, now: float) -> Lane | None:
        """Return the lane to start for a job that waits, or None if it has to wait."""
        if not isinstance(job, Task):
            return None if "comparisons" in self.lanes else "comparisons"
        if "runs" not in self.lanes:
            return "runs"
        passes = _fits(job, "small runs") and now - self.lanes["runs"] > self.busy_s
        return "small runs" if passes and "small runs" not in self.lanes else None

    def _work(self, lane: Lane) -> None:
        while (entry := self._next(lane)) is not None:
            answer = self._do(entry)
            with self._lock:
                entry.ended_s = time.monotonic()
                if answer is None:
                    self._forget(entry)
                else:
                    entry.answer = answer
            entry.ended.set()

    def _next(self, lane: Lane) -> _Entry | None:
        """Return the oldest job of a lane that waits, or None."""
        now = time.monotonic()
        with self._lock:
            self._drop_expired(now)
            for entry in self._entries.values():
                if not entry.begun and _fits(entry.job, lane):
                    entry.begun = True
                    self.lanes[lane] = now
                    return entry
            del self.lanes[lane]
            return None

    def _do(self, entry: _Entry) -> Answer | None:
        """Do a job in a worker process; return None if nobody asks for it any more. The next request starts again."""
        noun = "analysis" if isinstance(entry.job, Task) else "comparison"
        try:
            # Not in the log directory: before Python 3.11, modules would be imported from there.
            with WorkerProcess(self._target, entry.job, folder="/", environment=ENVIRONMENT) as worker:
                return self._receive(worker, entry)
        except WorkerUnwantedError:
            return None
        except WorkerError as error:
            return Failed(f"The {noun} failed: {error}. If it does so again, please report it.", 500)
        except Exception as error:
            return Failed(f"The {noun} cannot be started ({type(error).__name__}: {error}).", 500)

    def _receive(self, worker: WorkerProcess, entry: _Entry) -> Answer:
        """Wait for the answer of a worker process, and keep its progress."""
        if isinstance(entry.job, Task):
            entry.answer = Working(0.0, "starting")
        while True:
            answer: Answer = worker.receive(
                Working,
                Done,
                Failed,
                timeout_s=self.stalled_s,
                is_wanted=lambda: time.monotonic() - entry.asked_s <= self.abandoned_s,
            )
            if not isinstance(answer, Working):
                return answer
            entry.answer = answer


def _run_of(task: Task) -> tuple[Hashable, ...]:
    return task.run.kind, task.run.storage, task.run.folder


def _identity(job: Job) -> Hashable:
    """Return the identity of a job. Keys do not include the run: two folders with equal files have the same key."""
    return (*_run_of(job), job.key) if isinstance(job, Task) else job


def _fits(job: Job, lane: Lane) -> bool:
    if not isinstance(job, Task):
        return lane == "comparisons"
    size_bytes = sum(file.size_bytes for file in job.run.files)
    return lane == "runs" or (lane == "small runs" and size_bytes <= SMALL_BYTES)
