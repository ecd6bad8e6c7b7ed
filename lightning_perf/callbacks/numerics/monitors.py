"""The monitors of one fit's numbers: loss scale, gradient underflow, and the comparison with FP32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_perf.analysis.loss_scale import LossScaleHistory, OverflowOrigin
from lightning_perf.analysis.numerics_drift import NumericsDrift
from lightning_perf.analysis.underflow import UnderflowTable
from lightning_perf.callbacks.error_reporter import Faults
from lightning_perf.callbacks.lightning_compat import Module, Trainer, holds_whole_model, step_number
from lightning_perf.callbacks.numerics.fp32_replay import NumericsGuard
from lightning_perf.callbacks.numerics.loss_scale import LossScaleMonitor
from lightning_perf.callbacks.numerics.overflow_origin import OverflowLocator
from lightning_perf.callbacks.numerics.underflow import UnderflowMonitor
from lightning_perf.callbacks.precision.precision_error import PrecisionError
from lightning_perf.callbacks.whole_file import write_whole

__all__ = ["MonitorOptions", "NumericsMonitors"]

_CONSEQUENCES = {
    "scale": "the loss scale is not monitored any more",
    "log": "the loss scale is not logged any more",
    "underflow": "gradients are not monitored any more",
    "locator": "the origin of overflows is not looked for any more",
    "guard": "the run is not compared with FP32",
}


@dataclass(frozen=True, kw_only=True)
class MonitorOptions:
    """What to monitor.

    Attributes:
        underflow_every_n_steps: Steps between two looks at the gradients; 0 for never.
        locate_overflows: Overflows to find the origin of; 0 for none.
        guard_steps: Steps to replay in FP32; 0 for none.

    Raises:
        ValueError: A number is too small.
    """

    underflow_every_n_steps: int
    locate_overflows: int
    guard_steps: int

    def __post_init__(self) -> None:
        for name in ("underflow_every_n_steps", "locate_overflows", "guard_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} is too small: give 0 or more")
        if self.guard_steps == 1:
            raise ValueError("guard_steps=1 is too small: one step is the same for every seed, give 2 or more")


class NumericsMonitors:
    """Passes the events of one fit to its monitors. A monitor that fails is reported once and dropped.

    Args:
        trainer: The Trainer, at the start of training.
        module: The LightningModule.
        options: What to monitor.
        folder: Where files go; None to write none.
        faults: Where faults are reported.

    Raises:
        PrecisionError: The first steps cannot be replayed in FP32, or overflows not be located, as was asked for.
    """

    def __init__(
        self, trainer: Trainer, module: Module, options: MonitorOptions, *, folder: Path | None, faults: Faults
    ) -> None:
        self._trainer = trainer
        self._module = module
        self._folder = folder
        self._faults = faults
        self._attempts = 0
        self._active: dict[str, Any] = {}
        self.loss_scale: LossScaleHistory | None = None
        """The loss scale's history; None without a loss scale."""
        self.underflow: UnderflowTable | None = None
        """Gradient underflow; None where no step was sampled."""
        self.numerics: NumericsDrift | None = None
        """The comparison with FP32 replays; None where there is none."""
        if options.guard_steps:
            self._active["guard"] = NumericsGuard(trainer, module, options.guard_steps)
        scaler = trainer.scaler
        if scaler is not None and scaler.is_enabled():
            if options.locate_overflows and not holds_whole_model(trainer):
                raise PrecisionError(
                    f"{type(trainer.strategy).__name__} shards the model, and a shard cannot run a batch again by "
                    "itself to find the origin of an overflow",
                    "Leave out locate_overflows",
                )
            try:
                self._begin(options)
            except Exception as error:
                faults.report(_CONSEQUENCES["scale"], error)

    @property
    def active(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self._active)

    def batch_begins(self, batch: Any, batch_idx: int) -> None:
        """A training batch begins."""
        self._tell("guard", lambda guard: guard.batch_begins(batch, batch_idx))
        self._tell("scale", lambda scale: scale.batch_begins())
        self._tell("locator", lambda locator: locator.batch_begins(batch, batch_idx))
        first = batch_idx % self._trainer.accumulate_grad_batches == 0
        self._tell("underflow", lambda monitor: monitor.batch_begins(step_number(self._trainer), first_of_step=first))

    def backward_begins(self, loss: Any) -> None:
        """A backward pass begins, on a scaled loss."""
        self._tell("scale", lambda scale: scale.backward_begins())
        self._tell("underflow", lambda underflow: underflow.backward_begins(loss))

    def backward_ends(self) -> None:
        """The backward pass has ended, gradients are still scaled."""
        self._tell("underflow", lambda underflow: underflow.backward_ends())

    def step_begins(self, optimizer: Any) -> None:
        """An optimizer is about to step, or to be skipped."""
        automatic = bool(self._module.automatic_optimization)
        self._tell("guard", lambda guard: guard.step_begins(optimizer))
        self._tell("scale", lambda scale: scale.step_begins(optimizer, automatic=automatic))

    def batch_ends(self, outputs: Any) -> None:
        """A training batch has ended."""
        self._tell("underflow", lambda underflow: underflow.batch_ends())
        self._tell("scale", lambda scale: scale.batch_ends())
        self._tell("log", self._log)
        self._tell("guard", lambda guard: guard.batch_ends(outputs))

    def ends(self) -> None:
        """Training has ended or failed."""
        self._tell("underflow", self._end_underflow)
        self._tell("scale", self._end_scale)
        self._tell("guard", self._end_guard)
        self._active.clear()

    def save_summary(self, text: bytes) -> None:
        """Write the results to ``precision.json``, from the first rank."""
        if self._folder is not None and self._trainer.is_global_zero:
            try:
                write_whole(self._folder / "precision.json", text)
            except OSError as error:
                self._faults.report("the summary of the run's precision is not saved", error)

    def _begin(self, options: MonitorOptions) -> None:
        rank = int(self._trainer.global_rank)
        locator = None
        if options.locate_overflows:
            locator = self._active["locator"] = OverflowLocator(self._trainer, self._module, options.locate_overflows)
        scale = self._active["scale"] = LossScaleMonitor(
            self._trainer,
            path=self._folder / f"loss_scale.rank{rank}.jsonl" if self._folder is not None else None,
            faults=self._faults,
            locate=self._located if locator is not None else None,
        )
        if self._trainer.loggers:
            self._active["log"] = scale
        # All ranks hold the same gradients after backward: one of them looks. Of a sharded model it has a part only.
        if options.underflow_every_n_steps and self._trainer.is_global_zero and holds_whole_model(self._trainer):
            self._active["underflow"] = UnderflowMonitor(
                self._module,
                every_n_steps=options.underflow_every_n_steps,
                scale=lambda: scale.scale,
                probe=int(self._trainer.world_size) == 1,
                path=self._folder / f"underflow.rank{rank}.jsonl" if self._folder is not None else None,
                faults=self._faults,
            )

    def _located(self, optimizer: Any, scale: float) -> OverflowOrigin | None:
        found: list[OverflowOrigin | None] = []
        self._tell("locator", lambda locator: found.append(locator.locate(optimizer, scale)))
        return found[0] if found else None

    def _log(self, monitor: LossScaleMonitor) -> None:
        every = self._trainer.log_every_n_steps
        stepped, self._attempts = monitor.attempts != self._attempts, monitor.attempts
        if not stepped or not every:
            return
        step = step_number(self._trainer)
        if (step + 1) % every == 0:
            for logger in self._trainer.loggers:
                logger.log_metrics(monitor.metrics, step=step)

    def _end_underflow(self, monitor: UnderflowMonitor) -> None:
        monitor.ends()
        self.underflow = monitor.table

    def _end_scale(self, monitor: LossScaleMonitor) -> None:
        monitor.ends()
        self.loss_scale = monitor.history

    def _end_guard(self, guard: NumericsGuard) -> None:
        self.numerics = guard.result

    def _tell(self, name: str, say: Callable[[Any], None]) -> None:
        monitor = self._active.get(name)
        if monitor is None:
            return
        try:
            say(monitor)
        except Exception as error:
            del self._active[name]
            if name == "scale":
                self._active.pop("log", None)
            self._faults.report(_CONSEQUENCES[name], error)
