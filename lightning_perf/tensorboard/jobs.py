"""The queue of documents to make: one worker process at a time, so that the machine stays with its training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from lightning_perf.tensorboard.task import Answer, Done, Failed, Task, Working

__all__ = ["Jobs"]

UNWANTED_S = 60.0
"""A document that nobody has asked for again in this time is not begun: its reader has left."""

RETRY_S = 30.0
"""After this time, what failed for a passing reason, or is there no more, is made again when asked for."""

STALLED_S = 900.0
"""A worker that has not got on in this time is ended."""

MOST_KEPT = 200
"""So many failures are remembered."""


@dataclass
class _Job:
    task: Task
    asked_s: float
    answer: Answer
    begun: bool = False
    ended_s: float | None = None


class Jobs:
    """Makes documents, one after the other.

    Args:
        command: The worker's command.
    """

    def __init__(self, command: tuple[str, ...] = (sys.executable, "-m", "lightning_perf.tensorboard.worker")) -> None:
        self._command = command
        self._jobs: OrderedDict[tuple[str, str], _Job] = OrderedDict()
        self._lock = threading.Lock()
        self._running = False

    def ask(self, task: Task) -> Working | Done | Failed:
        """Have a document made, or tell how that goes.

        Args:
            task: The task; the same one is done once.

        Returns:
            `Working` while it waits or goes on; `Done` once, soon after it has come to its place; `Failed` when it
            failed, which is tried again with other files, or after a while where the reason may pass.
        """
        identity = (task.kind, task.key)
        now = time.monotonic()
        with self._lock:
            job = self._jobs.get(identity)
            if job is not None and job.ended_s is not None:
                recent = now - job.ended_s < RETRY_S
                if isinstance(job.answer, Failed) and (job.answer.lasting or recent):
                    return job.answer
                del self._jobs[identity]
                if isinstance(job.answer, Done) and recent:
                    return job.answer
                job = None  # what was done has been removed since
            if job is None:
                self._drop_outdated(task)
                waiting = Working(0.0, "waiting for another analysis" if self._running else "starting")
                job = self._jobs[identity] = _Job(task, now, waiting)
            job.asked_s = now
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="lightning_perf analyses", daemon=True).start()
            return job.answer

    def _drop_outdated(self, task: Task) -> None:
        """Forget what waits to be made of older files of the run: while they are written, they change all the time."""
        for identity, job in list(self._jobs.items()):
            same_run = (job.task.kind, job.task.location, job.task.folder) == (task.kind, task.location, task.folder)
            if same_run and not job.begun:
                del self._jobs[identity]

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                answer = self._run(job)
            except Exception as error:
                answer = Failed(f"The analysis cannot be started ({type(error).__name__}: {error}).", lasting=False)
            with self._lock:
                job.answer, job.ended_s = answer, time.monotonic()

    def _next(self) -> _Job | None:
        with self._lock:
            now = time.monotonic()
            for identity, job in list(self._jobs.items()):
                if job.ended_s is None:
                    if now - job.asked_s <= UNWANTED_S:
                        job.begun = True
                        return job
                    del self._jobs[identity]
            while len(self._jobs) > MOST_KEPT:
                self._jobs.popitem(last=False)
            self._running = False
            return None

    def _run(self, job: _Job) -> Answer:
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd="/",  # before Python 3.11 its own folder is imported from, and that may be the log directory
                env=_environment(),
                start_new_session=True,
            )
            assert process.stdin is not None
            assert process.stdout is not None
            # The worker ends when its standard input is closed: it stays open as long as this process lives.
            with process.stdin, process.stdout:
                try:
                    with suppress(BrokenPipeError):
                        process.stdin.write(msgspec.json.encode(job.task) + b"\n")
                        process.stdin.flush()
                    job.answer = Working(0.0, "starting")
                    last, stalled = self._follow(job, process)
                finally:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            if not isinstance(last, Working):
                return last
            if stalled:
                minutes = round(STALLED_S / 60)
                return Failed(f"The analysis was ended: it had not got on for {minutes} minutes.", lasting=False)
            return Failed(_death(process.returncode, errors), lasting=False)

    def _follow(self, job: _Job, process: subprocess.Popen[bytes]) -> tuple[Answer, bool]:
        """Read the worker's answers until it ends; returns the last one, and whether it was ended."""
        assert process.stdout is not None
        stalled = threading.Event()

        def end() -> None:
            stalled.set()
            process.kill()

        answer: Answer = job.answer
        timer = threading.Timer(STALLED_S, end)
        timer.start()
        try:
            for line in process.stdout:
                timer.cancel()
                answer = msgspec.json.decode(line, type=Answer)
                if not isinstance(answer, Working):
                    break
                job.answer = answer
                timer = threading.Timer(STALLED_S, end)
                timer.start()
        finally:
            timer.cancel()
        return answer, stalled.is_set()


def _environment() -> dict[str, str]:
    package_root = str(Path(__file__).parents[2])
    search = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), package_root]))
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": search, "PYTHONSAFEPATH": "1"}


def _death(code: int, errors: IO[bytes]) -> str:
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - 4000))
    lines = errors.read().decode(errors="replace").strip().splitlines()
    reason = f": {lines[-1]}" if lines else ""
    if code == -signal.SIGKILL:
        return f"The analysis was killed, as a rule because the machine ran out of memory{reason}."
    if code < 0:
        return f"The analysis crashed ({signal.Signals(-code).name}){reason}. Please report this with the trace."
    return f"The analysis ended with exit code {code}{reason}. Please report this with the trace."
