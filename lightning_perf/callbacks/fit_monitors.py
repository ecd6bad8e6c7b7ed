"""The monitors of a fit that `PerfCallback` runs on request: the forecast of number formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.forecast.monitor import ForecastMonitor
from lightning_perf.callbacks.lightning_compat import Module, Trainer
from lightning_perf.callbacks.numerics.monitors import Isolated
from lightning_perf.callbacks.recording.schedule import expected_steps
from lightning_perf.run_files.forecast import FORECAST

__all__ = ["FitMonitors"]


class FitMonitors:
    """Passes Lightning's hooks to the monitors. A monitor that fails is reported once and dropped.

    Args:
        trainer: The Trainer, at the start of training.
        module: The LightningModule.
        folder: Where files go.
        errors: Where errors are reported.
        forecast: Share of the fit's time for the forecast; None for no forecast.
        profiling: Returns whether the profiler runs.
    """

    def __init__(
        self,
        trainer: Trainer,
        module: Module,
        *,
        folder: Path | None,
        errors: ErrorReporter,
        forecast: float | None = None,
        profiling: Callable[[], bool] = lambda: False,
    ) -> None:
        self._forecast: Isolated[ForecastMonitor] = Isolated("number formats are not forecast", errors)
        if folder is None or not trainer.is_global_zero:
            return
        rank = int(trainer.global_rank)
        if forecast is not None:
            steps = expected_steps(trainer)
            try:
                self._forecast.monitor = ForecastMonitor(
                    trainer,
                    module,
                    path=FORECAST.path(folder, rank),
                    errors=errors,
                    share=forecast,
                    profiling=profiling,
                    expected_batches=steps * int(trainer.accumulate_grad_batches) if steps is not None else None,
                )
            except Exception as error:
                errors.report("number formats are not forecast", error, kind="forecast")

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """A training batch starts."""
        self._forecast.call(ForecastMonitor.on_batch_start)

    def on_batch_end(self, outputs: Any) -> None:  # noqa: ARG002
        """A training batch has ended."""
        self._forecast.call(ForecastMonitor.on_batch_end)

    def finish(self) -> None:
        """Training has ended or failed."""
        self._forecast.call(ForecastMonitor.finish)
        self._forecast.monitor = None
