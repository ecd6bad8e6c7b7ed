"""The monitors of a fit that `PerfCallback` runs on request: the forecast of number formats, shadow steps, FP8."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.forecast.fp8_watch import Fp8Monitor, fp8_layers
from lightning_perf.callbacks.forecast.monitor import ForecastMonitor
from lightning_perf.callbacks.lightning_compat import Module, Trainer
from lightning_perf.callbacks.numerics.monitors import Isolated
from lightning_perf.callbacks.numerics.shadow import ShadowMonitor
from lightning_perf.callbacks.recording.schedule import expected_steps
from lightning_perf.run_files.numerics.samples import FORECAST, FP8, SHADOW

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
        shadow: Steps between two shadow steps; 0 for none.

    Raises:
        PrecisionError: Shadow steps are not possible in this training.
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
        shadow: int = 0,
    ) -> None:
        self._shadow: Isolated[ShadowMonitor] = Isolated("the training is not compared with FP32 any more", errors)
        self._forecast: Isolated[ForecastMonitor] = Isolated("number formats are not forecast", errors)
        self._fp8: Isolated[Fp8Monitor] = Isolated("the FP8 layers are not watched any more", errors)
        if folder is None or not trainer.is_global_zero:
            return
        rank = int(trainer.global_rank)
        layers = fp8_layers(module)
        if layers:
            self._fp8.monitor = Fp8Monitor(trainer, layers, path=FP8.path(folder, rank), errors=errors)
        if shadow:
            path = SHADOW.path(folder, rank)
            self._shadow.monitor = ShadowMonitor(trainer, module, every=shadow, path=path, errors=errors)
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

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:
        """A training batch starts."""
        self._shadow.call(ShadowMonitor.on_batch_start, batch, batch_idx)  # first: the forecast does not sample it
        self._forecast.call(ForecastMonitor.on_batch_start)
        self._fp8.call(Fp8Monitor.on_batch_start)

    def on_after_backward(self) -> None:
        """A backward pass has ended, and gradients are still scaled."""
        self._shadow.call(ShadowMonitor.on_after_backward)

    def on_batch_end(self, outputs: Any) -> None:
        """A training batch has ended."""
        self._shadow.call(ShadowMonitor.on_batch_end, outputs)
        self._forecast.call(ForecastMonitor.on_batch_end)
        self._fp8.call(Fp8Monitor.on_batch_end)

    def finish(self) -> None:
        """Training has ended or failed."""
        self._forecast.call(ForecastMonitor.finish)
        self._shadow.call(ShadowMonitor.finish)
        self._fp8.call(Fp8Monitor.finish)
        self._forecast.monitor = self._shadow.monitor = self._fp8.monitor = None

    @property
    def active(self) -> bool:
        """Whether any monitor is at work."""
        return any(each.monitor is not None for each in (self._forecast, self._shadow, self._fp8))
