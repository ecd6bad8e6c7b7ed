"""Follows the loss scale of an fp16 run on the host, without waiting for the device unless overflows are located."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from lightning_perf.analysis.precision.scales import ScalerState, summarize_loss_scale
from lightning_perf.callbacks.host_copy import HostCopy
from lightning_perf.callbacks.lightning_compat import Module, Trainer, step_number
from lightning_perf.callbacks.numerics.nonfinite import OverflowLocator
from lightning_perf.callbacks.steps.fit_state import FitContext
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.callbacks.trainer_log import TrainerLog
from lightning_perf.run_files.numerics.samples import SCALE_EVENTS, NonFinite, ScaleEvent


@dataclass
class Attempt:
    """An optimizer step, kept until it is known whether the scaler skipped it."""

    optimizer: Any
    step: int
    number: int
    ended_ns: int = 0
    schedulers: tuple[tuple[Any, int], ...] = ()
    scheduler_steps: int = 0
    executed: bool = False
    verdict: HostCopy | None = None
    """Of a fused optimizer: a scalar, not zero if there was inf or NaN."""
    origin: NonFinite | None = None

    def overflowed(self, *, wait: bool) -> bool | None:
        """Return whether the step was skipped; None if only the device knows and `wait` is not set."""
        if self.verdict is None:
            return not self.executed
        return bool(self.verdict.read().item()) if wait or self.verdict.arrived else None


class Unscaled(FitObserver):
    """The loss scale of a training without one."""

    def __init__(self) -> None:
        self.scale = 1.0
        """The loss scale, as far as the host knows."""
        self.first_skipped: int | None = None
        """The first step since which all steps were skipped, as far as the host knows; None if the last was not."""
        self.events: list[ScaleEvent] = []
        """All changes of the loss scale so far; none without a scaler."""

    def leave_out(self, time_ns: int) -> None:
        """Leave the time of a monitor's own passes out of the time of the open batch."""


class LossScaleMonitor(Unscaled):
    """Mirrors a scaler on the host: which optimizer steps it skipped, and the loss scale that follows from it.

    torch runs the hooks of an optimizer's step only if the scaler lets it step, so the host knows of each skip without
    asking the device. A fused optimizer steps always and skips on the device: its verdicts are copied aside and read
    once they have arrived.

    Made at the start of training, when the scaler's state is restored. As long as `locator` has overflows left to look
    into, the host waits for the verdict on each step of a fused optimizer. The batch has to run again before the next
    step changes the weights. `isolate` drops a locator that fails.
    """

    consequence = "the loss scale is not monitored any more"

    def __init__(
        self,
        trainer: Trainer,
        module: Module,
        context: FitContext,
        *,
        trainer_log: TrainerLog,
        locator: OverflowLocator,
        isolate: Callable[[FitObserver], AbstractContextManager[None]],
    ) -> None:
        super().__init__()
        self._trainer = trainer
        self._module = module
        state = trainer.scaler.state_dict()  # waits for the device, if at all, before the first step
        self._state = ScalerState(
            scale=float(state["scale"]),
            steps_since_change=int(state["_growth_tracker"]),
            growth_factor=float(state["growth_factor"]),
            backoff_factor=float(state["backoff_factor"]),
            growth_interval=int(state["growth_interval"]),
        )
        self._file = context.writer(SCALE_EVENTS, "the loss scale's history is no longer saved")
        self._log = trainer_log
        trainer_log.add_source(lambda: self.metrics)
        self._locator = locator
        self._isolate = isolate
        self._open: Attempt | None = None
        self._in_batch: list[Attempt] = []
        self._unresolved: deque[Attempt] = deque()
        self._attempts = self._logged_attempts = self._resolved = self._skipped = 0
        self._trained_ns = self._counted_ns = 0
        self._backward_in_batch = False
        self._handles = [o.register_step_post_hook(self._stepped) for o in trainer.optimizers]
        self._began_ns = time.perf_counter_ns()
        self._step = step_number(self._trainer)
        self._add(ScaleEvent("start", self._step, self._state.scale, 0, 0))

    @property
    def metrics(self) -> dict[str, float]:
        """The loss scale for loggers; skipped steps from the first one on."""
        metrics = {
            "perf/loss_scale": self._state.scale,
            "perf/steps_since_scale_change": float(self._state.steps_since_change),
        }
        if self._skipped:
            metrics["perf/skipped_steps"] = float(self._skipped)
        return metrics

    def leave_out(self, time_ns: int) -> None:
        self._began_ns += time_ns

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        self._log.settle()
        self._began_ns = time.perf_counter_ns()
        self._backward_in_batch = False

    def on_before_backward(self, loss: Any) -> None:  # noqa: ARG002
        self._backward_in_batch = True

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        automatic = bool(self._module.automatic_optimization)
        self._close_attempt()
        if automatic and not self._backward_in_batch:
            return  # training_step returned None: Lightning asks the scaler for nothing
        self._settle_schedulers(optimizer)
        self._attempts += 1
        self._step = step_number(self._trainer)
        schedulers = self._schedulers_of(optimizer, automatic=automatic)
        self._open = Attempt(optimizer, self._step, self._attempts, schedulers=schedulers)

    def on_batch_end(self, outputs: Any) -> None:  # noqa: ARG002
        self._trained_ns = self._trained_now()
        self._began_ns = time.perf_counter_ns()
        self._close_attempt()
        self._settle_schedulers()
        self._resolve()
        stepped, self._logged_attempts = self._attempts != self._logged_attempts, self._attempts
        step, every = step_number(self._trainer), self._trainer.log_every_n_steps
        if stepped and every and (step + 1) % every == 0:
            self._log.due(step)

    def stop_waiting(self) -> None:
        """Forget the steps with a verdict that only the device knows."""
        self._open = None
        self._unresolved.clear()

    def results(self) -> dict[str, Any]:
        return {"loss_scale": summarize_loss_scale(self.events)}

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def finish(self) -> None:
        self.close()
        if self._open is not None and not self._open.executed and self._open.verdict is None:
            self._open = None  # cut off by an error before the scaler had its say
        self._close_attempt()
        self._resolve(wait=True)
        self._add(ScaleEvent("end", self._step, self._state.scale, self._resolved, self._trained_ns))

    def _schedulers_of(self, optimizer: Any, *, automatic: bool) -> tuple[tuple[Any, int], ...]:
        """The schedulers that are stepped with an optimizer, and how often they have been."""
        return tuple(
            (config.scheduler, config.scheduler.last_epoch)
            for config in self._trainer.lr_scheduler_configs
            if getattr(config.scheduler, "optimizer", None) is optimizer
            and hasattr(config.scheduler, "last_epoch")
            # One skipped step does not put a schedule by epochs off; in manual optimization the module steps them.
            and (config.interval == "step" or not automatic)
        )

    def _trained_now(self) -> int:
        return self._trained_ns + time.perf_counter_ns() - self._began_ns

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        attempt = self._open
        if attempt is None or attempt.optimizer is not optimizer:
            return
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is None:
            attempt.executed = True
        else:
            on_cuda = found_inf.device.type == "cuda"  # a tensor on the host is not copied by `HostCopy`
            attempt.verdict = HostCopy(found_inf if on_cuda else found_inf.detach().clone())

    def _close_attempt(self) -> None:
        """The open attempt is over: either its optimizer has stepped by now or it was skipped."""
        attempt, self._open = self._open, None
        if attempt is None:
            return
        attempt.ended_ns = self._trained_now()
        if self._locator.left and attempt.overflowed(wait=True):
            with self._isolate(self._locator):
                attempt.origin = self._locator.locate(attempt.optimizer, self._scale_of_next())
        self._locator.forget()
        self._in_batch.append(attempt)
        self._unresolved.append(attempt)

    def _scale_of_next(self) -> float:
        """The scale after all attempts so far, those of fused optimizers too that have not been counted yet."""
        state = self._state
        for attempt in self._unresolved:
            state = state.after(overflow=bool(attempt.overflowed(wait=True)))
        return state.scale

    def _settle_schedulers(self, optimizer: Any = None) -> None:
        """Count the scheduler steps since the attempts of one optimizer, or of all, and forget those attempts."""
        for attempt in self._in_batch:
            if optimizer is None or attempt.optimizer is optimizer:
                attempt.scheduler_steps = sum(scheduler.last_epoch - before for scheduler, before in attempt.schedulers)
                attempt.schedulers = ()
        self._in_batch = [attempt for attempt in self._in_batch if attempt.schedulers]

    def _resolve(self, *, wait: bool = False) -> None:
        while self._unresolved:
            attempt = self._unresolved[0]
            overflow = attempt.overflowed(wait=wait)
            if overflow is None:
                return
            self._unresolved.popleft()
            self._advance(attempt, overflow=overflow)

    def _advance(self, attempt: Attempt, *, overflow: bool) -> None:
        before, self._state = self._state, self._state.after(overflow=overflow)
        self._resolved = attempt.number
        cost_ns, self._counted_ns = attempt.ended_ns - self._counted_ns, attempt.ended_ns
        if not overflow:
            self.first_skipped = None
        elif self.first_skipped is None:
            self.first_skipped = attempt.step
        if not overflow and self._state.scale == before.scale:
            return
        self._skipped += overflow
        self._add(
            ScaleEvent(
                "overflow" if overflow else "growth",
                attempt.step,
                self._state.scale,
                attempts=attempt.number,
                trained_ns=attempt.ended_ns,
                wasted_ns=cost_ns if overflow else 0,
                scheduler_steps=attempt.scheduler_steps if overflow else 0,
                origin=attempt.origin if overflow else None,
            )
        )

    def _add(self, event: ScaleEvent) -> None:
        self.scale = event.scale
        self.events.append(event)
        self._file.append(event)
