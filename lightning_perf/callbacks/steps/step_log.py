"""What becomes of step samples: a file of JSON lines, and means in the Trainer's loggers at the Trainer's cadence."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.steps.fit_state import FitState, StepObserver
from lightning_perf.run_files.jsonl import LogWriter
from lightning_perf.run_files.steps import STEPS, StepSample

__all__ = ["StepLog", "step_metrics"]

FLUSH_EVERY = 50
"""Steps between two writes of the file when the Trainer logs never, or less often."""

KEPT = 10_000
"""Samples kept in memory, for the report of a fit that could not save them."""


class StepLog(StepObserver):
    """Writes step samples to a file and their means to loggers.

    Both happen every `log_every` steps, outside of what is timed and recorded. A file that cannot be written is one
    warning.

    Args:
        state: The state of the fit.
        path: The file to append to; None to write none.
        send: Takes metrics and the number of the step they are logged at; None to log none.
        log_every: Steps between two logs; 0 for never.
        errors: Where a failing file is reported.
    """

    def __init__(
        self,
        state: FitState,
        *,
        path: Path | None,
        send: Callable[[dict[str, float], int], None] | None,
        log_every: int,
        errors: ErrorReporter,
    ) -> None:
        self._state = state
        self._file = LogWriter(STEPS, path, errors.report, "step times are no longer saved")
        self._send = send
        self._log_every = log_every
        self._flush_every = min(log_every or FLUSH_EVERY, FLUSH_EVERY)
        self._errors = errors
        self._latest: deque[StepSample] = deque(maxlen=KEPT)
        self._unwritten: list[StepSample] = []
        self._unsent: list[StepSample] = []

    def add(self, sample: StepSample) -> None:
        """Take a finished sample."""
        self._latest.append(sample)
        if self._file.path is not None:
            self._unwritten.append(sample)
        # A profiled step is slower than the run: its time would mislead beside the others.
        if self._send is not None and self._log_every and not sample.profiled:
            self._unsent.append(sample)

    def unsaved(self) -> tuple[StepSample, ...]:
        """Return the latest samples where no file holds them, and none where one does."""
        self.write()
        return tuple(self._latest) if self._file.path is None else ()

    def on_step_end(self) -> None:
        """Write and log if it is time to."""
        if len(self._unwritten) >= self._flush_every:
            self.write()
        if self._log_every and (self._state.number + 1) % self._log_every == 0:
            self.write()
            if self._unsent and self._send is not None:
                samples, self._unsent = self._unsent, []
                try:
                    self._send(step_metrics(samples), self._state.number)
                except Exception as error:  # a logger may be of any make
                    self._send = None
                    self._errors.report("step times are no longer logged", error)

    def write(self) -> None:
        """Append what is not yet in the file."""
        samples, self._unwritten = self._unwritten, []
        self._file.append(*samples)


def step_metrics(samples: Sequence[StepSample]) -> dict[str, float]:
    """Average step samples into what loggers show.

    Args:
        samples: The samples, at least one.

    Returns:
        ``perf/step_time_ms``, ``perf/data_wait_ms`` and, where measured, ``perf/device_time_ms`` a step, and
        ``perf/samples_per_s`` of this process.

    Example:
        >>> step_metrics([StepSample(0, 20_000_000, 5_000_000, None, 32, False)])
        {'perf/step_time_ms': 20.0, 'perf/data_wait_ms': 5.0, 'perf/samples_per_s': 1600.0}
    """
    metrics = {
        "perf/step_time_ms": sum(sample.step_ns for sample in samples) / len(samples) / 1e6,
        "perf/data_wait_ms": sum(sample.data_wait_ns for sample in samples) / len(samples) / 1e6,
    }
    device_ns = [sample.device_ns for sample in samples if sample.device_ns is not None]
    if device_ns:
        metrics["perf/device_time_ms"] = sum(device_ns) / len(device_ns) / 1e6
    counted = [(sample.samples, sample.step_ns) for sample in samples if sample.samples is not None]
    counted_ns = sum(step_ns for _, step_ns in counted)
    if counted_ns:
        metrics["perf/samples_per_s"] = sum(count for count, _ in counted) / counted_ns * 1e9
    return metrics
