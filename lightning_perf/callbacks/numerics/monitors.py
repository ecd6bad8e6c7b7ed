"""The monitors of one fit's numbers: loss scale, gradient underflow, NaN and infinities, mistakes, FP32 replays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lightning_perf.callbacks.lightning_compat import Module, Trainer, holds_whole_model
from lightning_perf.callbacks.mistakes.watch import MistakeWatch
from lightning_perf.callbacks.numerics.bad_run import Diagnose, LossWatch, check_diagnose
from lightning_perf.callbacks.numerics.guard import NumericsGuard
from lightning_perf.callbacks.numerics.loss_scale import LossScaleMonitor, Unscaled
from lightning_perf.callbacks.numerics.nonfinite import OverflowLocator
from lightning_perf.callbacks.numerics.replay import KeptBatch, Replay
from lightning_perf.callbacks.numerics.underflow import UnderflowMonitor
from lightning_perf.callbacks.precision.switch import PrecisionError
from lightning_perf.callbacks.steps.fit_state import FitContext
from lightning_perf.callbacks.steps.observers import Observers
from lightning_perf.callbacks.trainer_log import TrainerLog
from lightning_perf.run_files.numerics.precision import PrecisionMistake


@dataclass(frozen=True, kw_only=True)
class MonitorOptions:
    """Settings of the monitors. 0 turns one off.

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


def add_monitors(
    observers: Observers,
    trainer: Trainer,
    module: Module,
    options: MonitorOptions,
    context: FitContext,
    trainer_log: TrainerLog,
    known_mistakes: Iterable[PrecisionMistake] = (),
) -> None:
    """Add the monitors of a fit's numbers to its observers. `known_mistakes` were found before the training started."""
    errors = context.errors
    scaled = trainer.scaler is not None and bool(trainer.scaler.is_enabled())
    if scaled and options.locate_overflows and not holds_whole_model(trainer):
        raise PrecisionError(
            f"{type(trainer.strategy).__name__} shards the model, and one shard cannot run a batch again to find the "
            "origin of an overflow",
            "Leave out locate_overflows",
        )
    replay = Replay(trainer, module, context.state)
    # The guard is the first to start and the last to end, so that no other monitor counts the time of its replays.
    if options.guard_steps:
        observers.add(NumericsGuard(replay, options.guard_steps, lambda kept: _examine_drift(kept, observers)))
    locator, scaler = OverflowLocator(replay, options.locate_overflows), Unscaled()
    if scaled:
        with errors.instead(LossScaleMonitor.consequence):
            scaler = LossScaleMonitor(
                trainer,
                module,
                context,
                trainer_log=trainer_log,
                locator=locator,
                isolate=observers.isolate,
            )
    with errors.instead(LossWatch.consequence):
        if options.diagnose != "off" and LossWatch.applies(replay):
            observers.add(LossWatch(replay, options.diagnose, scaler))
    with errors.instead("mistakes in mixed precision are not looked for"):
        observers.add(MistakeWatch(trainer, module, errors, known=known_mistakes, scale_events=scaler.events))
    if not isinstance(scaler, LossScaleMonitor):
        return
    observers.add(scaler)
    observers.add(locator)
    # All ranks hold the same gradients after backward: one of them looks. Of a sharded model it has a part only.
    if options.underflow_every_n_steps and trainer.is_global_zero and holds_whole_model(trainer):
        with errors.instead(LossScaleMonitor.consequence):
            every = options.underflow_every_n_steps
            observers.add(UnderflowMonitor(trainer, module, context, every_n_steps=every, scaler=scaler))


def _examine_drift(kept: KeptBatch, observers: Observers) -> None:
    for watch in [each for each in observers if isinstance(each, LossWatch)]:
        with observers.isolate(watch):
            watch.examine_drift(kept)
