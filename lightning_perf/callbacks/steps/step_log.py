"""Saves the sample of every step, and hands it to the Trainer's loggers."""

from __future__ import annotations

import time
from collections import deque

from lightning_perf.callbacks.steps.fit_state import FitContext
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.callbacks.trainer_log import TrainerLog
from lightning_perf.run_files.captures import WINDOWS, RecordedWindow
from lightning_perf.run_files.steps import STEPS, StepSample

FLUSH_EVERY = 50
FLUSH_EVERY_S = 5.0
"""Steps and seconds between two writes of the file, whichever comes first. A killed run loses so many at most."""

KEPT = 10_000
"""Samples kept in memory, for the report of a fit that cannot save them."""


class StepLog(FitObserver):
    """Writes step samples and windows to files, and gives samples to the log of the Trainer's loggers.

    Files and loggers are written between steps, in time that is neither measured nor recorded. A file that cannot be
    written causes one warning. If the loop has `log_every` 0, nothing is logged.
    """

    consequence = "step times are no longer saved"

    def __init__(self, context: FitContext, trainer_log: TrainerLog) -> None:
        self._state = context.state
        self._file = context.writer(STEPS, self.consequence)
        self._windows = context.writer(WINDOWS, "the cost of the profiler is no longer saved")
        self._trainer_log = trainer_log
        self._log_every = context.loop.log_every
        self._flushed_s = time.monotonic()
        self._latest: deque[StepSample] = deque(maxlen=KEPT)
        self._unwritten: list[StepSample] = []

    def on_window(self, window: RecordedWindow) -> None:
        self._windows.append(window)

    def on_sample(self, sample: StepSample) -> None:
        self._latest.append(sample)
        if self._file.path is not None:
            self._unwritten.append(sample)
        # A profiled step is slower than the others and would distort their mean.
        if not sample.profiled:
            self._trainer_log.add_sample(sample)

    def unsaved(self) -> tuple[StepSample, ...]:
        """Return the latest samples where no file holds them, and none where one does."""
        self.write()
        return tuple(self._latest) if self._file.path is None else ()

    def on_step_end(self) -> None:
        """Write and log if it is time to."""
        if len(self._unwritten) >= FLUSH_EVERY or time.monotonic() - self._flushed_s >= FLUSH_EVERY_S:
            self.write()
        if self._log_every and (self._state.number + 1) % self._log_every == 0:
            self._trainer_log.due(self._state.number)
            self._trainer_log.settle()

    def finish(self) -> None:
        self.write()

    def close(self) -> None:
        """Write the rest, also if another observer has failed."""
        self.write()

    def write(self) -> None:
        """Append the samples that are not in the file yet."""
        samples, self._unwritten = self._unwritten, []
        self._flushed_s = time.monotonic()
        self._file.append(*samples)
