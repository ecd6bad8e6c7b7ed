"""`MistakeWatch`: runs all checks of one fit at the hooks where each of them can see its mistake."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.lightning_compat import Module, Trainer, is_compiled, step_number
from lightning_perf.callbacks.mistakes.autocast_cache import StaleCasts
from lightning_perf.callbacks.mistakes.averages import HalfAverages
from lightning_perf.callbacks.mistakes.checkpoints import saved_without_scaler
from lightning_perf.callbacks.mistakes.found import FoundMistakes
from lightning_perf.callbacks.mistakes.logged_values import LoggedValues
from lightning_perf.callbacks.mistakes.lost_updates import LostUpdates
from lightning_perf.callbacks.mistakes.operators import OperatorWatch
from lightning_perf.callbacks.mistakes.place import layer_names
from lightning_perf.callbacks.mistakes.scaler_calls import ScalerCalls
from lightning_perf.callbacks.mistakes.schedule import schedule_ahead
from lightning_perf.callbacks.mistakes.weights import check_weights_and_optimizers, half_accumulation
from lightning_perf.callbacks.precision.fp32_layers import layer_name
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.numerics.precision import LossScaleHistory, PrecisionMistake

OPERATOR_BATCHES = 2
"""Batches in which every operator is looked at."""

FIRST_STEPS = 2
MOST_BATCHES = 64
"""Calls of scalers and of `log` are followed until this many optimizer steps were made, or this many batches."""


class ScaleMonitor(Protocol):
    """Keeps the history of a loss scale."""

    @property
    def history(self) -> LossScaleHistory:
        """The history so far."""


class MistakeWatch(FitObserver):
    """Looks for mistakes in the use of 16 bits during the first steps of a fit.

    The training computes the same with and without it.
    """

    consequence = "mistakes in mixed precision are not looked for any more"

    def __init__(
        self,
        trainer: Trainer,
        module: Module,
        errors: ErrorReporter,
        *,
        known: Iterable[PrecisionMistake] = (),
        warned: Iterable[str] = (),
        scale: Sequence[ScaleMonitor] = (),
    ) -> None:
        self._trainer = trainer
        self._module = module
        self._errors = errors
        self._scale = scale
        self._found = FoundMistakes(silent=not trainer.is_global_zero, warned=warned)
        precision = str(getattr(trainer.precision_plugin, "precision", ""))
        mixed = precision in ("16-mixed", "bf16-mixed")
        names = layer_names(module)
        parameters: Mapping[int, str] = {id(p): layer_name(name) for name, p in module.named_parameters()}
        for mistake in known:
            self._found.add(mistake)
        for mistake in check_weights_and_optimizers(trainer, module, precision):
            self._found.add(mistake)
        self._calls = ScalerCalls(trainer, names, parameters, self._found.add, self._failed)
        self._log = LoggedValues(trainer, module, names, self._found.add)
        self._follows_log = not is_compiled(module)  # a wrapper of `log` would break the graph of a compiled step
        self._casts = StaleCasts(parameters, self._found.add)
        self._averages = HalfAverages(trainer, module)
        self._updates = None if mixed else LostUpdates(trainer, module)
        sixteen = mixed or any(p.dtype in (torch.float16, torch.bfloat16) for p in module.parameters())
        self._operators: OperatorWatch | None = None
        if self._follows_log:
            self._operators = OperatorWatch(module, names, self._found.add, mixed=mixed, on_error=self._failed)
        self._look_at_operators = sixteen
        self._manual = not module.automatic_optimization
        self._batches = self._steps = self._backwards = 0
        self._first = True
        self._loss: torch.Tensor | None = None
        self._saved: Mapping[str, Any] | None = None

    @property
    def mistakes(self) -> tuple[PrecisionMistake, ...]:
        """The mistakes so far."""
        return self._found.mistakes

    @property
    def idle(self) -> Collection[str]:
        """Most hooks after the first batches."""
        if self._first:
            return ()
        idle = ["on_before_backward", "on_before_optimizer_step"]
        idle += ["on_batch_start"] if self._saved is None else []
        return idle + (["on_batch_end", "on_epoch_end"] if not self._log.places else [])

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """A training batch starts."""
        self._check_saved()
        if not self._first:
            return
        self._calls.step = self._casts.step = step_number(self._trainer)
        self._calls.start()
        if self._follows_log:
            self._log.start()
        self._casts.on_batch_start()
        wanted = self._look_at_operators or self._calls.users_scaler is not None
        # In a recorded step the checks would show up in the trace, and their cost in its times.
        recorded = torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
        if self._operators is not None and wanted and not recorded and self._batches < OPERATOR_BATCHES:
            self._operators.step = self._calls.step
            self._operators.start()

    def on_before_backward(self, loss: Any) -> None:
        """A backward pass starts."""
        if not self._first:
            return
        self._backwards += 1
        if self._manual:
            self._casts.on_before_backward(loss)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        if not self._first:
            return
        if self._manual:
            self._casts.on_before_optimizer_step(optimizer)
            if self._backwards > 1 and not self._steps:
                for mistake in half_accumulation(self._module, self._backwards):
                    self._found.add(mistake)
        self._steps += 1
        self._backwards = 0

    def on_batch_end(self, outputs: Any) -> None:
        """A training batch has ended."""
        loss = outputs.get("loss") if type(outputs) is dict or isinstance(outputs, Mapping) else outputs
        self._loss = loss if isinstance(loss, torch.Tensor) else self._loss
        if not self._first:
            return
        if self._operators is not None:
            self._operators.stop()
        self._batches += 1
        if (self._steps >= FIRST_STEPS and self._batches >= OPERATOR_BATCHES) or self._batches >= MOST_BATCHES:
            self._end_first()

    def on_epoch_end(self) -> None:
        """Training on an epoch has ended."""
        self._log.on_epoch_end(self._loss, step_number(self._trainer))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is about to be saved. Other hooks still change it, so it is checked at the next batch."""
        self._saved = checkpoint
        self.idle_changes()

    def results(self) -> dict[str, Any]:
        """Return the mistakes."""
        return {"mistakes": self.mistakes}

    def finish(self) -> None:
        """Training has ended or failed."""
        self._end_first()
        self._check_saved()
        for mistake in self._averages.check(step_number(self._trainer)):
            self._found.add(mistake)
        for mistake in self._updates.check(step_number(self._trainer)) if self._updates is not None else ():
            self._found.add(mistake)
        for history in (scale.history for scale in self._scale):
            line = f'PrecisionCallback("16-mixed", init_scale={history.lowest_scale:g})'
            ahead = schedule_ahead(history, line)
            if ahead is not None:
                self._found.add(ahead)

    def close(self) -> None:
        """Remove all that the watch added to torch and to the module. A second call does nothing."""
        self._first = False
        if self._operators is not None:
            self._operators.stop()
        self._calls.stop()
        self._log.stop()

    def _end_first(self) -> None:
        if not self._first:
            return
        self.close()
        self.idle_changes()
        for mistake in self._averages.check(step_number(self._trainer)):
            self._found.add(mistake)

    def _check_saved(self) -> None:
        checkpoint, self._saved = self._saved, None
        if checkpoint is not None:
            self.idle_changes()
            users = self._calls.users_scaler
            mistake = saved_without_scaler(self._trainer, checkpoint, users, step_number(self._trainer))
            if mistake is not None:
                self._found.add(mistake)

    def _failed(self, error: Exception) -> None:
        self._errors.report(self.consequence, error)
