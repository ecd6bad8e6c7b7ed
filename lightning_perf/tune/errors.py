"""Errors of the tuner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lightning_perf.errors import UserError
from lightning_perf.workers.process import WorkerError, WorkerFailureError, WorkerTimeoutError


class TuneError(UserError, ValueError):
    """The training, or a setting of the tuner, cannot be used. The message names the cause and the fix."""


class TrialError(Exception):
    """A lever failed. Its row gives the reason, and the tuning continues with the others."""


class NotApplicableError(TrialError):
    """A lever turned out not to apply to this training."""


class NoTrainingError(TrialError):
    """The name that was given for the training does not exist."""


class NoFitError(NoTrainingError):
    """A script ended before its training began."""


class OutOfTimeError(TrialError):
    """A trial took longer than its time limit."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a trial failed because the memory of its device or host was full.

    Example:
        >>> is_out_of_memory(TrialError("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"))
        True
    """
    text = str(error).lower()
    return "out of memory" in text or "outofmemory" in text or "cannot allocate memory" in text


@contextmanager
def trial_errors() -> Iterator[None]:
    """Convert errors of a training's worker process into a `TrialError`."""
    known = {error.__name__: error for error in (NotApplicableError, NoTrainingError, NoFitError)}
    try:
        yield
    except WorkerTimeoutError as error:
        raise OutOfTimeError("it took longer than the budget allows") from error
    except WorkerFailureError as error:
        kind = known.get(error.error, TrialError)
        said = f". Its last lines: {error.output}" if kind is NoFitError and error.output else ""
        raise kind(f"{error}{said}") from error
    except WorkerError as error:
        raise TrialError(str(error)) from error


REASON_CHARACTERS = 300


def describe_error(error: BaseException) -> str:
    """Describe an error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # "backend='inductor' raised:" says nothing without the next line.
    first = " ".join(lines[: 2 if lines[0].endswith(":") else 1]) if lines else ""
    reason = first if isinstance(error, TrialError) else f"{type(error).__name__}: {first}".removesuffix(": ")
    return reason if len(reason) <= REASON_CHARACTERS else f"{reason[: REASON_CHARACTERS - 1]}…"
