"""The queue of documents to make. One worker process runs at a time, so that training keeps the machine.

While it is busy with one document for long, a second worker process makes those of small runs.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal, TypeAlias

from lightning_perf.tensorboard.task import Answer, Done, Failed, Task, Working
from lightning_perf.workers.process import WorkerError, WorkerProcess, WorkerUnwantedError

__all__ = ["DocumentQueue"]

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Environment of a worker process. It uses one thread, because training needs the cores."""

UNWANTED_S = 60.0
"""A document is not started if nobody has asked for it again within this time, because its reader has left."""

ABANDONED_S = 180.0
"""A worker process is stopped if nobody has asked for its result within this time.

It is longer than for a document that waits, because browsers let a hidden page ask only once per minute.
"""

BUSY_S = 10.0
"""After this time with one document, the first worker process does not hold up small runs any more."""

SMALL_BYTES = 64 << 20
"""Maximum size of a small run's files together."""

RETRY_S = 30.0
"""After this time a document is made again on request, if its failure was temporary or if it was removed."""

STALLED_S = 900.0
"""A worker without progress for this time is stopped."""

MOST_KEPT = 200
"""Maximum number of answers that are remembered."""


@dataclass
class _Entry:
    task: Task
    asked_s: float
    answer: Answer
    begun_s: float | None = None
    ended_s: float | None = None


_Lane: TypeAlias = Literal["any run", "small runs"]


def _is_small(task: Task) -> bool:
    return sum(file.size_bytes for file in task.files) <= SMALL_BYTES


def _run_of(task: Task) -> tuple[str, ...]:
    """Return the identity of a task's run. Keys do not include it: two folders with equal files have the same key."""
    return task.kind, task.url or task.location, task.folder


class DocumentQueue:
    """Makes documents one at a time, and those of small runs also while another one takes long.

    Args:
        target: The function that the worker process runs.
    """

    def __init__(self, target: str = "lightning_perf.tensorboard.worker:main") -> None:
        self._target = target
        self._entries: OrderedDict[tuple[str, ...], _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._running: set[_Lane] = set()

    def ask(self, task: Task) -> Working | Done | Failed:
        """Request a document, or return the progress of an earlier request.

        Args:
            task: The task. Equal tasks are done once.

        Returns:
            `Working` while the task waits or runs, and `Done` shortly after the document was written. `Failed` after an
            error: the task is then tried again with other files, or after a while if the reason may be temporary.
        """
        identity = (*_run_of(task), task.key)
        now = time.monotonic()
        with self._lock:
            entry = self._entries.get(identity)
            if entry is not None and entry.ended_s is not None:
                recent = now - entry.ended_s < RETRY_S
                if isinstance(entry.answer, Failed) and (entry.answer.lasting or recent):
                    return entry.answer
                del self._entries[identity]
                if isinstance(entry.answer, Done) and recent:
                    return entry.answer
                entry = None  # the document has been removed since
            if entry is None:
                self._drop_outdated(task)
                waiting = Working(0.0, "waiting for another analysis to finish" if self._running else "starting")
                entry = self._entries[identity] = _Entry(task, now, waiting)
            entry.asked_s = now
            lane = self._idle_lane(entry, now)
            if lane is not None:
                self._running.add(lane)
                threading.Thread(target=self._work, args=(lane,), name=f"lightning_perf {lane}", daemon=True).start()
            return entry.answer

    def forget(self, task: Task) -> None:
        """Forget a finished task, so that the next request makes its document again."""
        with self._lock:
            entry = self._entries.get((*_run_of(task), task.key))
            if entry is not None and isinstance(entry.answer, Done):
                del self._entries[(*_run_of(task), task.key)]

    def _drop_outdated(self, task: Task) -> None:
        """Drop waiting tasks for older versions of the run's files, which change all the time during a fit."""
        for identity, entry in list(self._entries.items()):
            if _run_of(entry.task) == _run_of(task) and entry.begun_s is None:
                del self._entries[identity]

    def _idle_lane(self, entry: _Entry, now: float) -> _Lane | None:
        """Return the worker process to start for a document that waits, or None if it has to wait."""
        if entry.begun_s is not None or entry.ended_s is not None:
            return None
        if "any run" not in self._running:
            return "any run"
        busy = [
            other.begun_s for other in self._entries.values() if other.begun_s is not None and other.ended_s is None
        ]
        long_busy = bool(busy) and now - min(busy) > BUSY_S
        return "small runs" if long_busy and _is_small(entry.task) and "small runs" not in self._running else None

    def _work(self, lane: _Lane) -> None:
        while (entry := self._next(lane)) is not None:
            try:
                answer = self._run(entry)
            except WorkerUnwantedError:
                with self._lock:  # the next request starts again
                    self._entries.pop((*_run_of(entry.task), entry.task.key), None)
                continue
            except Exception as error:
                answer = Failed(f"The analysis cannot be started ({type(error).__name__}: {error}).", lasting=False)
            with self._lock:
                entry.answer, entry.ended_s = answer, time.monotonic()

    def _next(self, lane: _Lane) -> _Entry | None:
        with self._lock:
            now = time.monotonic()
            for identity, entry in list(self._entries.items()):
                if entry.begun_s is not None or (lane == "small runs" and not _is_small(entry.task)):
                    continue
                if now - entry.asked_s <= UNWANTED_S:
                    entry.begun_s = now
                    return entry
                del self._entries[identity]
            ended = [identity for identity, entry in self._entries.items() if entry.ended_s is not None]
            for identity in ended[: max(0, len(self._entries) - MOST_KEPT)]:
                del self._entries[identity]
            self._running.discard(lane)
            return None

    def _run(self, entry: _Entry) -> Answer:
        try:
            # Not in the log directory: before Python 3.11, modules would be imported from there.
            with WorkerProcess(
                self._target, entry.task, folder="/", environment={**THREADS, "PYTHONSAFEPATH": "1"}
            ) as worker:
                entry.answer = Working(0.0, "starting")
                while True:
                    answer: Answer = worker.receive(
                        Working,
                        Done,
                        Failed,
                        timeout_s=STALLED_S,
                        is_wanted=lambda: time.monotonic() - entry.asked_s <= ABANDONED_S,
                    )
                    if not isinstance(answer, Working):
                        return answer
                    entry.answer = answer
        except WorkerUnwantedError:
            raise
        except WorkerError as error:
            return Failed(f"The analysis failed: {error}. If it does so again, please report it.", lasting=False)
