"""A trial's process as the tuner sees it: started fresh, told what to do, and never waited for without end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar

from lightning_perf.tune.errors import NotApplicableError, NoTrainingError, OutOfTimeError, TrialError
from lightning_perf.tune.messages import Answer, Failed, Order, Ready, Run, Scouted, Stop, Window

__all__ = ["TrialProcess"]

Wanted = TypeVar("Wanted", Ready, Scouted, Window)

LOG_LINES = 3
LOG_BYTES = 4000
STOP_SECONDS = 10.0
LOOK_SECONDS = 0.5
"""How often to look whether the process still lives: children of a killed one may hold the pipe open."""


_ERRORS = {"trial": TrialError, "not applicable": NotApplicableError, "no training": NoTrainingError}


class TrialProcess:
    """One training in a process of its own.

    Args:
        order: What it is for.

    Raises:
        TrialError: It cannot be started.
    """

    def __init__(self, order: Order) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._pipe: Connection[Any, Answer]
        self._pipe, theirs = Pipe()
        self._busy = True
        command = [sys.executable, "-m", "lightning_perf.tune.worker", str(theirs.fileno())]
        try:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # a group of its own, with its DataLoader workers
            )
        except OSError as error:
            self._pipe.close()
            self._log.close()
            raise TrialError(f"no process can be started ({error.strerror})") from error
        finally:
            theirs.close()
        try:
            self._pipe.send(order)
        except BaseException as error:
            reason = self._ended() if isinstance(error, OSError) else error
            self.close()
            raise reason from error

    def scouted(self, limit_s: float) -> Scouted:
        """Wait until a scout is back."""
        return self._answer(Scouted, limit_s)

    def ready(self, limit_s: float) -> None:
        """Wait until training has begun."""
        self._answer(Ready, limit_s)

    def run(self, steps: int, limit_s: float) -> Window:
        """Train a window.

        Args:
            steps: Optimizer steps.
            limit_s: How long to wait at most.

        Raises:
            OutOfTimeError: It took longer.
            TrialError: It failed or ended.
        """
        self._busy = True
        try:
            self._pipe.send(Run(steps))
        except OSError as error:
            raise self._ended() from error
        return self._answer(Window, limit_s)

    def close(self) -> None:
        """End the training and the process, by force where it is at work or takes too long."""
        if not self._busy and self._process.poll() is None:
            with suppress(OSError):
                self._pipe.send(Stop())
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self._pipe.close()
        self._kill()
        self._log.close()

    def _answer(self, kind: type[Wanted], limit_s: float) -> Wanted:
        deadline = time.monotonic() + limit_s
        try:
            while not self._pipe.poll(max(0.0, min(LOOK_SECONDS, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    self._kill()
                    raise OutOfTimeError("it took longer than the budget allows")
                if self._process.poll() is not None and not self._pipe.poll():
                    raise self._ended()
            answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if isinstance(answer, Failed):
            raise _ERRORS[answer.fault](answer.reason)
        if not isinstance(answer, kind):
            raise TrialError(f"the training answered {type(answer).__name__} instead of {kind.__name__}")
        self._busy = False
        return answer

    def _ended(self) -> TrialError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        code = self._process.poll()
        self._kill()
        how = "without an answer" if code is None else f"by {_name(-code)}" if code < 0 else f"with exit code {code}"
        return TrialError(f"its process ended {how}: {self._last_words() or 'it printed nothing'}")

    def _last_words(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LOG_BYTES))
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return " / ".join(lines[-LOG_LINES:])

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
