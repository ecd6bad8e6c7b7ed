"""`MistakeWatch`: runs all checks of one fit at the hooks where each of them can see its mistake."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from lightning_perf.analysis.precision.scales import summarize_loss_scale
from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.lightning_compat import Module, Trainer, is_compiled
from lightning_perf.callbacks.mistakes.found import FoundMistakes
from lightning_perf.callbacks.mistakes.loop_checks import LoggedValues, StaleCasts, check_saved, check_schedule
from lightning_perf.callbacks.mistakes.operators import OperatorWatch
from lightning_perf.callbacks.mistakes.scaler_calls import ScalerCalls
from lightning_perf.callbacks.mistakes.weights import (
    SHORT,
    HalfAverages,
    LostUpdates,
    check_accumulation,
    check_weights_and_optimizers,
)
from lightning_perf.callbacks.precision.switch import precision_of
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.numerics.precision import PrecisionMistake
from lightning_perf.run_files.numerics.samples import ScaleEvent

OPERATOR_BATCHES = 2
"""Batches in which every operator is looked at."""

FIRST_STEPS = 2
MOST_BATCHES = 64
"""Calls of scalers and of `log` are followed until this many optimizer steps were made, or this many batches."""


class MistakeWatch(FitObserver):
    """Looks for mistakes in the use of 16 bits during the first steps of a fit.

    The training computes the same with and without it. By its end, `scale_events` are all those of the loss scale.
    """

    consequence = "mistakes in mixed precision are not looked for any more"

    def __init__(
        self,
        trainer: Trainer,
        module: Module,
        errors: ErrorReporter,
        *,
        known: Iterable[PrecisionMistake] = (),
        scale_events: Sequence[ScaleEvent] = (),
    ) -> None:
        self._trainer = trainer
        self._module = module
        self._scale_events = scale_events
        self._found = FoundMistakes(trainer, module, lambda error: errors.report(self.consequence, error))
        precision = precision_of(trainer)
        mixed = precision in ("16-mixed", "bf16-mixed")
        for mistake in known:
            self._found.add(mistake)
        check_weights_and_optimizers(self._found, trainer, module, precision)
        self._calls = ScalerCalls(trainer, self._found)
        self._log = LoggedValues(trainer, module, self._found)
        self._casts = StaleCasts(self._found)
        self._averages = HalfAverages(trainer, module)
        self._updates = None if mixed else LostUpdates(trainer, module)
        self._operators = OperatorWatch(module, self._found, mixed=mixed)
        self._wraps = not is_compiled(module)  # a wrapper of a method would break the graph of a compiled step
        self._looks_at_operators = mixed or any(p.dtype in SHORT for p in module.parameters())
        self._manual = not module.automatic_optimization
        self._batches = self._steps = self._backwards = 0
        self._first = True
        self._loss: torch.Tensor | None = None
        self._saved: Mapping[str, Any] | None = None

    @property
    def idle(self) -> Collection[str]:
        """Most hooks after the first batches."""
        if self._first:
            return ()
        idle = ["on_before_backward", "on_before_optimizer_step"]
        idle += ["on_batch_start"] if self._saved is None else []
        return idle + (["on_batch_end", "on_epoch_end"] if not self._log.places else [])

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        self._check_saved()
        if not self._first:
            return
        self._calls.start()
        self._casts.on_batch_start()
        if not self._wraps:
            return
        self._log.start()
        wanted = self._looks_at_operators or self._calls.users_scaler is not None
        # In a recorded step the checks would show up in the trace, and their cost in its times.
        recorded = torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
        if wanted and not recorded and self._batches < OPERATOR_BATCHES:
            self._operators.start()

    def on_before_backward(self, loss: Any) -> None:
        if not self._first:
            return
        self._backwards += 1
        if self._manual:
            self._casts.on_before_backward(loss)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if not self._first:
            return
        if self._manual:
            self._casts.on_before_optimizer_step(optimizer)
            if self._backwards > 1 and not self._steps:
                check_accumulation(self._found, self._module, self._backwards)
        self._steps += 1
        self._backwards = 0

    def on_batch_end(self, outputs: Any) -> None:
        loss = outputs.get("loss") if type(outputs) is dict or isinstance(outputs, Mapping) else outputs
        self._loss = loss if isinstance(loss, torch.Tensor) else self._loss
        if not self._first:
            return
        self._operators.stop()
        self._batches += 1
        if (self._steps >= FIRST_STEPS and self._batches >= OPERATOR_BATCHES) or self._batches >= MOST_BATCHES:
            self._end_first()

    def on_epoch_end(self) -> None:
        self._log.on_epoch_end(self._loss)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is about to be saved. Other hooks still change it, so it is checked at the next batch."""
        self._saved = checkpoint
        self.idle_changes()

    def results(self) -> dict[str, Any]:
        return {"mistakes": self._found.mistakes}

    def finish(self) -> None:
        self._end_first()
        self._check_saved()
        self._averages.check(self._found)
        if self._updates is not None:
            self._updates.check(self._found)
        if self._scale_events:
            check_schedule(self._found, summarize_loss_scale(self._scale_events))

    def close(self) -> None:
        self._first = False
        self._operators.stop()
        self._calls.stop()
        self._log.stop()

    def _end_first(self) -> None:
        if self._first:
            self.close()
            self.idle_changes()
            self._averages.check(self._found)

    def _check_saved(self) -> None:
        checkpoint, self._saved = self._saved, None
        if checkpoint is not None:
            self.idle_changes()
            check_saved(self._found, self._trainer, checkpoint, self._calls.users_scaler)
