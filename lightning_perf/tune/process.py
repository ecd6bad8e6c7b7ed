"""A trial's process as the tuner sees it: started fresh, told what to do, and never waited for without end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar

from lightning_perf.tune.errors import TrialError
from lightning_perf.tune.messages import Answer, Failed, Order, Ready, Run, Scouted, Stop, Window

__all__ = ["TrialProcess"]

Wanted = TypeVar("Wanted", Ready, Scouted, Window)

LOG_LINES = 3
STOP_SECONDS = 10.0


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
        command = [sys.executable, "-m", "lightning_perf.tune.worker", str(theirs.fileno())]
        try:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        except OSError as error:
            raise TrialError(f"no process can be started ({error.strerror})") from error
        finally:
            theirs.close()
        self._pipe.send(order)

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
            TrialError: It failed, ended, or took longer.
        """
        try:
            self._pipe.send(Run(steps))
        except OSError as error:
            raise self._ended() from error
        return self._answer(Window, limit_s)

    def close(self) -> None:
        """End the training and the process, by force where it takes too long."""
        with suppress(OSError):
            self._pipe.send(Stop())
        self._pipe.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
        self._log.close()

    def _answer(self, kind: type[Wanted], limit_s: float) -> Wanted:
        try:
            if not self._pipe.poll(max(0.0, limit_s)):
                self._kill()
                raise TrialError(f"no answer within {limit_s:.0f} s: the budget is spent")
            answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if isinstance(answer, Failed):
            raise TrialError(answer.reason)
        if not isinstance(answer, kind):
            raise TrialError(f"the training answered {type(answer).__name__} instead of {kind.__name__}")
        return answer

    def _ended(self) -> TrialError:
        code = self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return TrialError(f"its process ended {how}: {' / '.join(lines[-LOG_LINES:]) or 'it printed nothing'}")

    def _kill(self) -> None:
        # With its DataLoader workers: they are in the same session.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
