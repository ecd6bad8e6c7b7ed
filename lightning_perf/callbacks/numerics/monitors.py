"""The monitors of one fit's numbers: loss scale, gradient underflow, and the comparison with FP32."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.lightning_compat import Module, Trainer, holds_whole_model, step_number
from lightning_perf.callbacks.mistakes.watch import MistakeWatch
from lightning_perf.callbacks.numerics.bad_run import Diagnose, LossWatch, check_diagnose
from lightning_perf.callbacks.numerics.fp32_replay import NumericsGuard
from lightning_perf.callbacks.numerics.loss_scale import LossScaleMonitor
from lightning_perf.callbacks.numerics.overflow_origin import OverflowLocator
from lightning_perf.callbacks.numerics.underflow import UnderflowMonitor
from lightning_perf.callbacks.precision.switch import PrecisionError
from lightning_perf.callbacks.trainer_log import TrainerLog
from lightning_perf.run_files.numerics.precision import (
    BadRun,
    LossScaleHistory,
    NumericsDrift,
    PrecisionMistake,
    RunPrecision,
    UnderflowTable,
    write_precision,
)
from lightning_perf.run_files.numerics.samples import GRADIENT_SAMPLES, SCALE_EVENTS, OverflowOrigin

__all__ = ["Isolated", "MonitorOptions", "NumericsMonitors"]

M = TypeVar("M")
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class MonitorOptions:
    """Settings of the monitors.

    Attributes:
        underflow_every_n_steps: Steps between two looks at the gradients; 0 for never.
        locate_overflows: Number of overflows to find the origin of; 0 for none.
        guard_steps: Steps to replay in FP32; 0 for none.
        diagnose: What to check in every step for NaN and infinities.

    Raises:
        ValueError: A number is too small, or `diagnose` is unknown.
    """

    underflow_every_n_steps: int
    locate_overflows: int
    guard_steps: int
    diagnose: Diagnose = "loss"

    def __post_init__(self) -> None:
        for name in ("underflow_every_n_steps", "locate_overflows", "guard_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} is too small: give 0 or more")
        if self.guard_steps == 1:
            raise ValueError("guard_steps=1 is too small: one step is the same for every seed, give 2 or more")
        check_diagnose(self.diagnose)


class Isolated(Generic[M]):
    """Runs one monitor. Its first error is reported and ends this monitor only.

    Args:
        consequence: The part of the report that is missing without it, as a clause.
        errors: Where the error is reported.
    """

    def __init__(self, consequence: str, errors: ErrorReporter) -> None:
        self.monitor: M | None = None
        self._consequence = consequence
        self._errors = errors

    def call(self, hook: Callable[Concatenate[M, P], R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Call a hook of the monitor, if there is one."""
        if self.monitor is None:
            return None
        try:
            return hook(self.monitor, *args, **kwargs)
        except Exception as error:
            self.monitor = None
            self._errors.report(self._consequence, error)
            return None


class NumericsMonitors:
    """Passes Lightning's hooks to the monitors of one fit. A monitor that fails is reported once and dropped.

    Args:
        trainer: The Trainer, at the start of training.
        module: The LightningModule.
        options: Settings of the monitors.
        folder: Where files go; None to write none.
        errors: Where errors are reported.
        trainer_log: Where the loss scale is logged; None to log none.
        known_mistakes: Mistakes that were found before the training started.

    Raises:
        PrecisionError: The first steps cannot be replayed in FP32, or overflows not be located, as was asked for.
    """

    def __init__(
        self,
        trainer: Trainer,
        module: Module,
        options: MonitorOptions,
        *,
        folder: Path | None,
        errors: ErrorReporter,
        trainer_log: TrainerLog | None = None,
        known_mistakes: Iterable[PrecisionMistake] = (),
    ) -> None:
        self._trainer = trainer
        self._module = module
        self._folder = folder
        self._errors = errors
        self._attempts = 0
        self._drifted = False
        self._trainer_log = trainer_log
        self._guard: Isolated[NumericsGuard] = Isolated("the run is not compared with FP32", errors)
        self._scale: Isolated[LossScaleMonitor] = Isolated("the loss scale is not monitored any more", errors)
        self._scale_log: Isolated[LossScaleMonitor] = Isolated("the loss scale is not logged any more", errors)
        self._underflow: Isolated[UnderflowMonitor] = Isolated("gradients are not monitored any more", errors)
        self._locator: Isolated[OverflowLocator] = Isolated(
            "the origin of overflows is not looked for any more", errors
        )
        self._mistakes: Isolated[MistakeWatch] = Isolated(
            "mistakes in mixed precision are not looked for any more", errors
        )
        self._losses: Isolated[LossWatch] = Isolated("NaN and infinities are not diagnosed", errors)
        self.loss_scale: LossScaleHistory | None = None
        """The loss scale's history; None without a loss scale."""
        self.underflow: UnderflowTable | None = None
        """Gradient underflow; None where no step was sampled."""
        self.numerics: NumericsDrift | None = None
        """The comparison with FP32 replays; None if no replay was made."""
        self.mistakes: tuple[PrecisionMistake, ...] = tuple(known_mistakes)
        """Mistakes in the use of 16-bit precision."""
        self.bad_run: BadRun | None = None
        """The diagnosis of a run that went wrong; None if it did not."""
        if options.guard_steps:
            self._guard.monitor = NumericsGuard(trainer, module, options.guard_steps)
        scaler = trainer.scaler
        if scaler is not None and scaler.is_enabled():
            if options.locate_overflows and not holds_whole_model(trainer):
                raise PrecisionError(
                    f"{type(trainer.strategy).__name__} shards the model, and one shard cannot run a batch again "
                    "to find the origin of an overflow",
                    "Leave out locate_overflows",
                )
            try:
                self._follow_scaler(options)
            except Exception as error:
                errors.report("the loss scale is not monitored any more", error)
        try:
            if options.diagnose != "off" and LossWatch.applies(trainer, module):
                self._losses.monitor = LossWatch(trainer, module, options.diagnose, self._scale_now)
        except Exception as error:
            errors.report("NaN and infinities are not diagnosed", error)
        try:
            # The loss scale's monitor warns about a shared backward pass in every step, not only in the first ones.
            warned = ("shared-backward",) if self._scale.monitor is not None else ()
            watch = MistakeWatch(trainer, module, errors, known=known_mistakes, warned=warned)
            self._mistakes.monitor = watch
        except Exception as error:
            errors.report("mistakes in mixed precision are not looked for", error)

    @property
    def active(self) -> bool:
        """Whether any monitor is at work."""
        return any(one.monitor is not None for one in (self._guard, self._scale, self._mistakes, self._losses))

    # The order of calls matters. The guard comes first and last, so that the loss scale's monitor does not count the
    # time of its replays.

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """A training batch starts."""
        self._guard.call(NumericsGuard.on_batch_start, batch, batch_idx)
        if self._trainer_log is not None:
            self._trainer_log.settle()
        self._scale.call(LossScaleMonitor.on_batch_start)
        self._locator.call(OverflowLocator.on_batch_start, batch, batch_idx)
        self._losses.call(LossWatch.on_batch_start, batch, batch_idx)
        self._mistakes.call(MistakeWatch.on_batch_start)
        if self._underflow.monitor is not None:
            first = batch_idx % self._trainer.accumulate_grad_batches == 0
            self._underflow.call(UnderflowMonitor.on_batch_start, step_number(self._trainer), first_of_step=first)

    def on_before_backward(self, loss: Any) -> None:
        """A backward pass starts, on a scaled loss."""
        self._mistakes.call(MistakeWatch.on_before_backward, loss)
        self._losses.call(LossWatch.on_before_backward, loss)
        self._scale.call(LossScaleMonitor.on_before_backward)
        self._underflow.call(UnderflowMonitor.on_before_backward, loss)

    def on_after_backward(self) -> None:
        """The backward pass has ended, gradients are still scaled."""
        self._underflow.call(UnderflowMonitor.on_after_backward)
        self._losses.call(LossWatch.on_after_backward)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """An optimizer is about to step, or to be skipped."""
        automatic = bool(self._module.automatic_optimization)
        self._guard.call(NumericsGuard.on_before_optimizer_step, optimizer)
        self._scale.call(LossScaleMonitor.on_before_optimizer_step, optimizer, automatic=automatic)
        self._mistakes.call(MistakeWatch.on_before_optimizer_step, optimizer)

    def on_train_batch_end(self, outputs: Any) -> None:
        """A training batch has ended."""
        self._mistakes.call(MistakeWatch.on_batch_end, outputs)
        self._underflow.call(UnderflowMonitor.on_batch_end)
        self._scale.call(LossScaleMonitor.on_batch_end)
        if self._scale.monitor is not None:
            self._scale_log.call(self._log)
        self._guard.call(NumericsGuard.on_batch_end, outputs)
        guard = self._guard.monitor
        if guard is not None and guard.result is not None and guard.result.beyond_seed_noise and not self._drifted:
            self._drifted = True
            self._losses.call(LossWatch.examine_drift)

    def on_train_epoch_end(self) -> None:
        """Training on an epoch has ended."""
        self._mistakes.call(MistakeWatch.on_epoch_end)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is about to be saved."""
        self._mistakes.call(MistakeWatch.on_save_checkpoint, checkpoint)

    def finish(self) -> None:
        """Training has ended or failed."""
        watch = self._mistakes.monitor
        if watch is not None:
            watch.close()
        self._underflow.call(self._finish_underflow)
        self._scale.call(self._finish_scale)
        self._mistakes.call(MistakeWatch.finish, self.loss_scale)
        if watch is not None:
            self.mistakes = watch.mistakes
        if self._guard.monitor is not None:
            self.numerics = self._guard.monitor.result
        if self._losses.monitor is not None:
            self.bad_run = self._losses.monitor.result
            self._losses.monitor.close()
        for isolated in (
            self._losses,
            self._guard,
            self._scale,
            self._scale_log,
            self._underflow,
            self._locator,
            self._mistakes,
        ):
            isolated.monitor = None

    def save_summary(self, precision: RunPrecision) -> None:
        """Write the results to ``precision.json``, from the first rank."""
        if self._folder is not None and self._trainer.is_global_zero:
            try:
                write_precision(self._folder, precision)
            except OSError as error:
                self._errors.report("the summary of the run's precision is not saved", error)

    def _follow_scaler(self, options: MonitorOptions) -> None:
        rank = int(self._trainer.global_rank)
        if options.locate_overflows:
            self._locator.monitor = OverflowLocator(self._trainer, self._module, options.locate_overflows)
        scale = self._scale.monitor = LossScaleMonitor(
            self._trainer,
            path=SCALE_EVENTS.path(self._folder, rank) if self._folder is not None else None,
            errors=self._errors,
            locate=self._locate if options.locate_overflows else None,
            locate_limit=options.locate_overflows,
        )
        if self._trainer_log is not None:
            self._scale_log.monitor = scale
            self._trainer_log.add_source(self._scale_metrics)
        # All ranks hold the same gradients after backward: one of them looks. Of a sharded model it has a part only.
        if options.underflow_every_n_steps and self._trainer.is_global_zero and holds_whole_model(self._trainer):
            self._underflow.monitor = UnderflowMonitor(
                self._module,
                every_n_steps=options.underflow_every_n_steps,
                scale=lambda: scale.scale,
                probe=int(self._trainer.world_size) == 1,
                path=GRADIENT_SAMPLES.path(self._folder, rank) if self._folder is not None else None,
                errors=self._errors,
            )

    def _scale_now(self) -> float:
        monitor = self._scale.monitor
        return monitor.scale if monitor is not None else 1.0

    def _locate(self, optimizer: Any, scale: float) -> OverflowOrigin | None:
        return self._locator.call(OverflowLocator.locate, optimizer, scale)

    def _log(self, monitor: LossScaleMonitor) -> None:
        every = self._trainer.log_every_n_steps
        stepped, self._attempts = monitor.attempts != self._attempts, monitor.attempts
        if not stepped or not every or self._trainer_log is None:
            return
        step = step_number(self._trainer)
        if (step + 1) % every == 0:
            self._trainer_log.due(step)

    def _scale_metrics(self) -> dict[str, float]:
        monitor = self._scale_log.monitor
        return monitor.metrics if monitor is not None else {}

    def _finish_underflow(self, monitor: UnderflowMonitor) -> None:
        monitor.finish()
        self.underflow = monitor.table

    def _finish_scale(self, monitor: LossScaleMonitor) -> None:
        monitor.finish()
        self.loss_scale = monitor.history
