"""The queue of queries about finished reports. One worker process answers them, and ends when it is idle."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from lightning_perf.tensorboard.document_queue import ABANDONED_S, STALLED_S, THREADS, UNWANTED_S
from lightning_perf.tensorboard.task import Answered, Damaged, Query, Refused, Reply, Working
from lightning_perf.workers.process import WorkerError, WorkerExitError, WorkerProcess, WorkerUnwantedError

__all__ = ["QueryQueue"]

WAIT_S = 2.0
"""How long a request waits for its answer. After that the page asks again."""

IDLE_S = 60.0
"""The worker process ends after this time without a query. Until then it keeps the last report in memory."""


@dataclass(eq=False)
class _Entry:
    query: Query
    asked_s: float
    answered: threading.Event = field(default_factory=threading.Event)
    answer: Reply | None = None
    begun: bool = False


class QueryQueue:
    """Answers queries one at a time, in a worker process.

    Args:
        target: The function that the worker process runs.
    """

    def __init__(self, target: str = "lightning_perf.tensorboard.query_worker:main") -> None:
        self._target = target
        self._entries: dict[Query, _Entry] = {}
        self._changed = threading.Condition()
        self._running = False

    def ask(self, query: Query) -> Reply | Working:
        """Return the answer to a query, or `Working` if it takes longer. Equal queries are answered once."""
        with self._changed:
            now = time.monotonic()
            self._drop_unwanted(now)
            entry = self._entries.get(query)
            if entry is None:
                entry = self._entries[query] = _Entry(query, now)
            entry.asked_s = now
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="lightning_perf queries", daemon=True).start()
            self._changed.notify_all()
        entry.answered.wait(WAIT_S)
        with self._changed:
            if entry.answer is None:
                return Working(0.0, "reading the report")
            if self._entries.get(query) is entry:
                del self._entries[query]
            return entry.answer

    def _drop_unwanted(self, now: float) -> None:
        """Drop queries that wait, and answers that nobody has fetched."""
        for query, entry in list(self._entries.items()):
            running = entry.begun and entry.answer is None
            if not running and now - entry.asked_s > UNWANTED_S:
                del self._entries[query]

    def _work(self) -> None:
        worker: WorkerProcess | None = None
        try:
            while (entry := self._next()) is not None:
                answer: Reply | None
                try:
                    worker, answer = self._answer(worker, entry)
                except WorkerUnwantedError:
                    worker, answer = None, None
                except WorkerError as error:
                    worker = None
                    answer = Refused(500, f"The query failed: {error}. If it does so again, please report it.")
                except Exception as error:
                    worker = None
                    answer = Refused(500, f"The query cannot be started ({type(error).__name__}: {error}).")
                with self._changed:
                    entry.answer = answer
                    if answer is None:
                        self._entries.pop(entry.query, None)
                entry.answered.set()
        finally:
            if worker is not None:
                worker.kill()

    def _next(self) -> _Entry | None:
        """Return the oldest query that waits, or None if none has come for a while."""
        end = time.monotonic() + IDLE_S
        with self._changed:
            while True:
                now = time.monotonic()
                self._drop_unwanted(now)
                entry = next((entry for entry in self._entries.values() if not entry.begun), None)
                if entry is not None:
                    entry.begun = True
                    return entry
                if now >= end:
                    self._running = False
                    return None
                self._changed.wait(end - now)

    def _answer(self, worker: WorkerProcess | None, entry: _Entry) -> tuple[WorkerProcess, Reply]:
        """Answer a query with the running worker process, or with a new one if it has ended."""
        if worker is not None:
            try:
                worker.send(entry.query)
                return worker, self._receive(worker, entry)
            except WorkerExitError:
                worker.kill()
            except BaseException:
                worker.kill()
                raise
        worker = WorkerProcess(self._target, entry.query, folder="/", environment={**THREADS, "PYTHONSAFEPATH": "1"})
        try:
            return worker, self._receive(worker, entry)
        except BaseException:
            worker.kill()
            raise

    @staticmethod
    def _receive(worker: WorkerProcess, entry: _Entry) -> Reply:
        reply: Reply = worker.receive(
            Answered,
            Refused,
            Damaged,
            timeout_s=STALLED_S,
            is_wanted=lambda: time.monotonic() - entry.asked_s <= ABANDONED_S,
        )
        return reply
