"""The monitors that `PerfCallback` adds on request: shadow steps, the forecast of number formats, FP8 layers."""

from __future__ import annotations

from pathlib import Path

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.forecast.fp8_watch import Fp8Monitor, fp8_layers
from lightning_perf.callbacks.forecast.monitor import ForecastMonitor
from lightning_perf.callbacks.lightning_compat import Module, Trainer
from lightning_perf.callbacks.numerics.replay import Replay
from lightning_perf.callbacks.numerics.shadow import ShadowMonitor
from lightning_perf.callbacks.recording.schedule import expected_steps
from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.callbacks.steps.observers import Observers
from lightning_perf.run_files.numerics.samples import FORECAST, FP8, SHADOW


def add_requested_monitors(
    observers: Observers,
    trainer: Trainer,
    module: Module,
    *,
    folder: Path | None,
    errors: ErrorReporter,
    state: FitState,
    forecast: float | None = None,
    shadow: int = 0,
) -> None:
    """Add the monitors that were asked for to the observers of a fit, on rank 0.

    Args:
        shadow: Steps between two shadow steps; 0 for none.

    Raises:
        PrecisionError: Shadow steps are not possible in this training.
    """
    if folder is None or not trainer.is_global_zero:
        return
    rank = int(trainer.global_rank)
    if shadow:  # first: the forecast does not sample the FP32 pass
        observers.add(
            ShadowMonitor(Replay(trainer, module), every=shadow, path=SHADOW.path(folder, rank), errors=errors)
        )
    if forecast is not None:
        steps = expected_steps(trainer)
        with errors.instead(ForecastMonitor.consequence, kind="forecast"):
            observers.add(
                ForecastMonitor(
                    trainer,
                    module,
                    path=FORECAST.path(folder, rank),
                    errors=errors,
                    share=forecast,
                    state=state,
                    expected_batches=steps * int(trainer.accumulate_grad_batches) if steps is not None else None,
                )
            )
    layers = fp8_layers(module)
    if layers:
        observers.add(Fp8Monitor(trainer, layers, path=FP8.path(folder, rank), errors=errors))
