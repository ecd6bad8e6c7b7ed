"""The queue of documents to make. Only one worker process runs at a time, so that training keeps the machine."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from lightning_perf.tensorboard.task import Answer, Done, Failed, Task, Working
from lightning_perf.workers.process import WorkerError, WorkerProcess

__all__ = ["DocumentQueue"]

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Environment of a worker process. It uses one thread, because training needs the cores."""

UNWANTED_S = 60.0
"""A document is not started if nobody has asked for it again within this time, because its reader has left."""

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
    begun: bool = False
    ended_s: float | None = None


def _run_of(task: Task) -> tuple[str, ...]:
    """Return the identity of a task's run. Keys do not include it: two folders with equal files have the same key."""
    return task.kind, task.url or task.location, task.folder


class DocumentQueue:
    """Makes documents one at a time.

    Args:
        target: The function that the worker process runs.
    """

    def __init__(self, target: str = "lightning_perf.tensorboard.worker:main") -> None:
        self._target = target
        self._entries: OrderedDict[tuple[str, ...], _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._running = False

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
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="lightning_perf analyses", daemon=True).start()
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
            if _run_of(entry.task) == _run_of(task) and not entry.begun:
                del self._entries[identity]

    def _work(self) -> None:
        while (entry := self._next()) is not None:
            try:
                answer = self._run(entry)
            except Exception as error:
                answer = Failed(f"The analysis cannot be started ({type(error).__name__}: {error}).", lasting=False)
            with self._lock:
                entry.answer, entry.ended_s = answer, time.monotonic()

    def _next(self) -> _Entry | None:
        with self._lock:
            now = time.monotonic()
            for identity, entry in list(self._entries.items()):
                if entry.ended_s is None:
                    if now - entry.asked_s <= UNWANTED_S:
                        entry.begun = True
                        return entry
                    del self._entries[identity]
            while len(self._entries) > MOST_KEPT:
                self._entries.popitem(last=False)
            self._running = False
            return None

    def _run(self, entry: _Entry) -> Answer:
        try:
            # Not in the log directory: before Python 3.11, modules would be imported from there.
            with WorkerProcess(
                self._target, entry.task, folder="/", environment={**THREADS, "PYTHONSAFEPATH": "1"}
            ) as worker:
                entry.answer = Working(0.0, "starting")
                while True:
                    answer: Answer = worker.receive(Working, Done, Failed, timeout_s=STALLED_S)
                    if not isinstance(answer, Working):
                        return answer
                    entry.answer = answer
        except WorkerError as error:
            return Failed(f"The analysis failed: {error}. If it does so again, please report it.", lasting=False)
