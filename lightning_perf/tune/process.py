"""`TrainingProcess`: a training in a worker process, as the tuner sees it."""

from __future__ import annotations

import sys

from lightning_perf.tune.errors import NotApplicableError, NoTrainingError, OutOfTimeError, TrialError
from lightning_perf.tune.messages import Order, Ready, Run, Scouted, Window
from lightning_perf.workers.messages import M
from lightning_perf.workers.process import WorkerError, WorkerFailureError, WorkerProcess, WorkerTimeoutError

__all__ = ["TrainingProcess"]

_ERRORS = {error.__name__: error for error in (NotApplicableError, NoTrainingError)}


class TrainingProcess:
    """One training in a worker process.

    Args:
        order: What it is for.
        target: What the worker process runs.

    Raises:
        TrialError: It cannot be started.
    """

    def __init__(self, order: Order, target: str = "lightning_perf.tune.worker:main") -> None:
        try:
            self._worker = WorkerProcess(target, order, path=sys.path)
        except WorkerError as error:
            raise _trial_error(error) from error

    def scouted(self, limit_s: float) -> Scouted:
        """Wait until a scout is back."""
        return self._receive(Scouted, limit_s)

    def ready(self, limit_s: float) -> None:
        """Wait until training has begun."""
        self._receive(Ready, limit_s)

    def run(self, steps: int, limit_s: float) -> Window:
        """Train a window.

        Args:
            steps: Optimizer steps.
            limit_s: How long to wait at most.

        Raises:
            OutOfTimeError: It took longer.
            TrialError: It failed or ended.
        """
        try:
            self._worker.send(Run(steps))
        except WorkerError as error:
            raise _trial_error(error) from error
        return self._receive(Window, limit_s)

    def close(self) -> None:
        """End the training and its process, by force where it is at work or takes too long."""
        self._worker.close()

    def _receive(self, kind: type[M], limit_s: float) -> M:
        try:
            return self._worker.receive(kind, limit_s)
        except WorkerError as error:
            raise _trial_error(error) from error


def _trial_error(error: WorkerError) -> TrialError:
    if isinstance(error, WorkerTimeoutError):
        return OutOfTimeError("it took longer than the budget allows")
    kind = _ERRORS.get(error.error, TrialError) if isinstance(error, WorkerFailureError) else TrialError
    return kind(str(error))
