"""The supervisor's side: start a worker process, exchange messages with it, and end it in any case."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path
from types import TracebackType
from typing import Any, overload

import msgspec

from lightning_perf.workers.channel import (
    Failure,
    M,
    Message,
    Stop,
    decode,
    describe_exit,
    encode,
    kill_group,
    last_lines,
)

STOP_S = 10.0
"""Time that a worker process has to end after a request to stop, before it is killed."""

LOOK_S = 0.5
"""Interval of checks whether a worker process is alive. Processes that it started may hold its connection open."""

FAILURE_LINES = 15
"""Last lines of a worker's output that its error keeps. The very last ones often do not hold the cause."""


class WorkerError(Exception):
    """A worker process did not do its work. The message says why."""


class WorkerFailureError(WorkerError):
    """An error was raised in the worker process.

    Attributes:
        error: Name of its class.
        output: The last lines of the worker's output, each on a line.
    """

    def __init__(self, reason: str, error: str, output: str = "") -> None:
        super().__init__(reason)
        self.error, self.output = error, output


class WorkerTimeoutError(WorkerError):
    """The worker process sent nothing within the timeout, and was killed."""


class WorkerUnwantedError(WorkerError):
    """Nobody wants the result any more, so the worker process was killed."""


class WorkerExitError(WorkerError):
    """The worker process ended, could not be started, or sent an unexpected message.

    Attributes:
        code: Its exit code; minus the signal's number if a signal ended it; None if it has not ended.
    """

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code


class WorkerProcess:
    """Runs a function in a fresh interpreter, in a process group of its own.

    If the supervisor ends for any reason, the worker process and the processes that it started are killed. Ctrl-C in a
    terminal reaches only the supervisor. Its `KeyboardInterrupt` leaves the ``with`` block, which kills the worker
    process. Errors quote the last lines of the worker's output.

    Args:
        path: Search path for modules, e.g. `sys.path`; None for the ``PYTHONPATH`` of this process.

    Raises:
        WorkerExitError: The worker process cannot be started.

    Example:
        >>> with WorkerProcess("my_package.my_module:count", Count(to=3)) as worker:  # doctest: +SKIP
        ...     counted = worker.receive(Counted, timeout_s=60)
    """

    def __init__(
        self,
        target: str,
        first: Message,
        *,
        path: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
    ) -> None:
        self._busy = True
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._connection, theirs = connection.Pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "lightning_perf.workers", target, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **(environment or {}), "PYTHONPATH": _search_path(path)},
                start_new_session=True,
            )
        except OSError as error:
            self._connection.close()
            self._log.close()
            raise WorkerExitError(f"its process cannot be started ({error.strerror}: {sys.executable})") from error
        finally:
            theirs.close()
        try:
            self.send(first)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> WorkerProcess:
        """Return the worker process, which already runs."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it, or kill it after an error."""
        if error is not None:
            self.kill()
        else:
            self.close()

    @property
    def pid(self) -> int:
        """Process ID of the worker process."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code; minus the signal's number if a signal ended it; None while it runs."""
        return self._process.poll()

    def fileno(self) -> int:
        """Return the file descriptor that messages come from."""
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Send a message."""
        self._busy = True
        try:
            self._connection.send_bytes(encode(message))
        except OSError as error:
            raise self._ended() from error

    @overload
    def receive(self, kind: type[M], /, *, timeout_s: float | None = None) -> M: ...

    @overload
    def receive(
        self, *kinds: type[Message], timeout_s: float | None = None, is_wanted: Callable[[], bool] | None = None
    ) -> Any: ...

    def receive(
        self, *kinds: type[Message], timeout_s: float | None = None, is_wanted: Callable[[], bool] | None = None
    ) -> Any:
        """Wait for the next message.

        Each call has the whole timeout, so a worker process that reports its progress may take longer in total. Without
        a timeout it waits until the worker process ends. About twice per second, the worker process is killed unless it
        `is_wanted`.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        try:
            while True:
                if is_wanted is not None and not is_wanted():
                    self._kill_group()
                    raise WorkerUnwantedError("it was stopped because nobody wants its result any more")
                if self._connection.poll(max(0.0, min(LOOK_S, deadline - time.monotonic()))):
                    break
                if time.monotonic() >= deadline:
                    self._kill_group()
                    raise WorkerTimeoutError(f"it was stopped after {timeout_s:.0f} s without an answer{self._tail()}")
                if self._process.poll() is not None and not self._connection.poll():
                    raise self._ended()
            message = decode(self._connection.recv_bytes(), *kinds, Failure)
        except (EOFError, OSError) as error:
            raise self._ended() from error
        except msgspec.DecodeError as error:
            raise WorkerExitError(f"its process sent an unexpected message ({error}){self._tail()}") from error
        if isinstance(message, Failure):
            raise WorkerFailureError(message.reason, message.error, last_lines(self._log, FAILURE_LINES))
        self._busy = False
        return message

    def close(self) -> None:
        """Stop the worker process. If it is busy, or does not stop within 10 s, it is killed."""
        if not self._busy and self._process.poll() is None:
            with suppress(OSError):
                self._connection.send_bytes(encode(Stop()))
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        self.kill()

    def kill(self) -> None:
        """Kill the worker process and all processes that it started."""
        self._kill_group()
        self._connection.close()
        self._log.close()

    def _ended(self) -> WorkerExitError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        code = self._process.poll()
        self._kill_group()
        return WorkerExitError(f"its process {describe_exit(code)}{self._tail()}", code)

    def _kill_group(self) -> None:
        kill_group(self._process.pid)
        self._process.wait()

    def _tail(self) -> str:
        lines = last_lines(self._log)
        return f"; last lines: {lines}" if lines else "; it printed nothing"


def wait_for_messages(workers: Collection[WorkerProcess], timeout_s: float = math.inf) -> list[WorkerProcess]:
    """Wait until at least one worker process has sent a message or has ended; return all that have."""
    found: list[WorkerProcess] = []
    until_s = time.monotonic() + timeout_s
    while workers and not found and time.monotonic() < until_s:
        ready = connection.wait([worker.fileno() for worker in workers], LOOK_S)
        found = [worker for worker in workers if worker.fileno() in ready or worker.exit_code is not None]
    return found


def _search_path(path: Sequence[str] | None) -> str:
    """Return the ``PYTHONPATH`` of a worker process, with the folder of this package."""
    if path is None:
        path = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    entries = [str(Path(entry).absolute()) for entry in path]
    package = str(Path(__file__).parents[2])
    return os.pathsep.join(entries if package in entries else [*entries, package])
