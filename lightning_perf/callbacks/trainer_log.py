"""Metrics for the Trainer's loggers, written into the rows that the Trainer itself logs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.lightning_compat import Trainer, step_number
from lightning_perf.callbacks.wrapped_methods import WrappedMethods
from lightning_perf.run_files.steps import StepSample

KEPT = 10_000
"""Step samples kept for the next row: a logger that gets no row for longer sees the mean of the latest."""


class TrainerLog:
    """Adds this library's metrics to the rows that a Trainer writes to its loggers.

    Each logger's ``log_metrics`` is wrapped during the fit. When the Trainer logs a row, our metrics travel in the same
    call, so that a logger with one row per call gets no row more. If the Trainer logs nothing at a step at which it
    could, `settle` makes a call of its own for loggers that draw one curve per metric. A `CSVLogger` has rows instead
    of curves and waits for the next row; if no row ever came, `finish` writes one.

    Args:
        trainer: The Trainer, at the start of training. Only its global rank 0 has loggers to write to. None to log
            nothing, as in a loop without a Trainer.
    """

    def __init__(self, trainer: Trainer | None, errors: ErrorReporter) -> None:
        self._due: int | None = None
        self._sources: list[Callable[[], dict[str, float]]] = []
        loggers = trainer.loggers if trainer is not None and trainer.is_global_zero else []
        self._rows = [_LoggerRows(logger, trainer, self._sources, errors) for logger in loggers]

    def add_source(self, source: Callable[[], dict[str, float]]) -> None:
        """Add metrics that every row shows with their value of the moment."""
        self._sources.append(source)

    def add_sample(self, sample: StepSample) -> None:
        """Count a step towards the means of the next row."""
        for rows in self._rows:
            rows.samples.append(sample)

    def due(self, step: int) -> None:
        """Note that a step ends at which the Trainer may log."""
        self._due = step

    def settle(self) -> None:
        """Log the step that was due to loggers that got no row of the Trainer since the one before."""
        step, self._due = self._due, None
        if step is None:
            return
        for rows in self._rows:
            if not rows.is_table and not rows.joined:
                rows.send(rows.take(), step)
            rows.joined = False

    def close(self) -> None:
        """Give the loggers their own methods back. Does nothing the second time."""
        self.settle()
        for rows in self._rows:
            rows.unwrap()

    def finish(self, metrics: dict[str, float], step: int) -> None:
        """Log metrics of the whole fit, after `close`."""
        for rows in self._rows:
            if not rows.is_table:
                rows.send(metrics, step)
            elif not rows.seen:
                rows.send({**rows.take(), **metrics}, step)


def is_table(logger: Any) -> bool:
    """Return whether a logger writes one row per call, as `CSVLogger` does."""
    return any(base.__name__ == "CSVLogger" for base in type(logger).__mro__)


class _LoggerRows:
    """One logger: the samples that wait for its next row, and the wrapper that adds them.

    Attributes:
        last_step: The step of the last row that our metrics joined.
        joined: Whether our metrics joined a row since the last `TrainerLog.settle`.
        seen: Whether the logger has got any row from the program since the fit began.
    """

    def __init__(
        self,
        logger: Any,
        trainer: Trainer,
        sources: Sequence[Callable[[], dict[str, float]]],
        errors: ErrorReporter,
    ) -> None:
        self.samples: deque[StepSample] = deque(maxlen=KEPT)
        self.is_table = is_table(logger)
        self.last_step: int | None = None
        self.joined = False
        self.seen = False
        self._trainer = trainer
        self._sources = sources
        self._errors = errors
        self._on = True
        self._failed = False
        self._write: Callable[..., Any] = logger.log_metrics
        self._wrapped = WrappedMethods()
        self._wrapped.wrap(logger, "log_metrics", self._wrap)  # a class with slots gets calls of our own instead

    def take(self) -> dict[str, float]:
        """Return the metrics of the next row, and begin a new mean."""
        metrics = step_metrics(tuple(self.samples))
        self.samples.clear()
        for source in self._sources:
            metrics |= source()
        return metrics

    def send(self, metrics: dict[str, float], step: int) -> None:
        """Log metrics in a call of our own, until one fails."""
        if not metrics or self._failed:
            return
        try:
            self._write(metrics, step=step)
        except Exception as error:  # the logger may come from anywhere
            self._failed = True
            self._errors.report("metrics of PerfCallback are no longer logged", error)

    def unwrap(self) -> None:
        """Give the logger its own method back."""
        self._on = False
        self._wrapped.restore()

    def _wrap(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def log_metrics(metrics: Any, *args: Any, **kwargs: Any) -> Any:
            if self._on:
                step = args[0] if args else kwargs.get("step")
                metrics = self._joined(metrics, step)
            return write(metrics, *args, **kwargs)

        return log_metrics

    def _joined(self, metrics: Any, step: int | None) -> Any:
        """Return a row of the program together with our metrics."""
        self.seen = True
        try:
            # A curve has one point per step, on the Trainer's own axis. A table has rows, whatever their step.
            if not self.is_table and (step == self.last_step or step != step_number(self._trainer)):
                return metrics
            self.last_step, self.joined = step, True
            return {**self.take(), **metrics}
        except Exception as error:
            self._on = False
            self._errors.report("metrics of PerfCallback are no longer logged", error)
            return metrics


MEAN_TIMES = {"perf/step_time_ms": "step_ns", "perf/data_wait_ms": "data_wait_ns", "perf/device_time_ms": "device_ns"}
RATES = {"perf/samples_per_s": "samples", "perf/tokens_per_s": "tokens"}
"""The metrics that loggers show, and the fields of step samples that they average."""


def step_metrics(samples: Sequence[StepSample]) -> dict[str, float]:
    """Average step samples of this process into the metrics that loggers show, as far as they are known."""
    metrics = {}
    for name, field in MEAN_TIMES.items():
        if times_ns := [time_ns for sample in samples if (time_ns := getattr(sample, field)) is not None]:
            metrics[name] = sum(times_ns) / len(times_ns) / 1e6
    for name, field in RATES.items():
        counted = [(amount, each.step_ns) for each in samples if (amount := getattr(each, field)) is not None]
        if counted_ns := sum(step_ns for _, step_ns in counted):
            metrics[name] = sum(amount for amount, _ in counted) / counted_ns * 1e9
    return metrics
