"""Diagnosis of a loss that turned NaN or infinite in 16 bits: its origin, FP32 on the same batch, and the cure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from lightning_perf.callbacks.lightning_compat import Module, Trainer, holds_whole_model, step_number
from lightning_perf.callbacks.mistakes.place import layer_names
from lightning_perf.callbacks.numerics.cure_search import CureSearch
from lightning_perf.callbacks.numerics.loss_scale import PendingVerdict
from lightning_perf.callbacks.numerics.nonfinite_operator import NonFiniteOperator, NonFiniteWatch
from lightning_perf.callbacks.numerics.overflow_origin import Batch
from lightning_perf.callbacks.numerics.replay import TorchRandomState, plain_precision, replayed_step, unmarked
from lightning_perf.callbacks.precision.fp32_layers import Fp32Layers
from lightning_perf.callbacks.precision.switch import PrecisionError
from lightning_perf.callbacks.precision.tf32 import Tf32Override
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.numerics.precision import BadRun, finite_or_none

__all__ = ["Diagnose", "LossWatch", "check_diagnose"]

Diagnose = Literal["loss", "gradients", "off"]
"""What to check in every step: the loss, the gradients as well, or nothing."""

LOWEST_SCALE = 1.0
"""A loss scale down here means that gradients overflow without any scale: the model itself is the cause."""

LOSS_TOLERANCE = 0.05
SAME_DIRECTION = 0.9
"""Conditions for a cure. Loss and gradients are finite, and the loss is within the first share of the one in FP32. The
cosine between its gradients and those in FP32 is at least the second number."""


def check_diagnose(diagnose: str) -> None:
    """Check the option.

    Raises:
        ValueError: It is unknown.
    """
    if diagnose not in get_args(Diagnose):
        raise ValueError(f"diagnose={diagnose!r} is unknown: give 'loss', 'gradients' or 'off'")


@dataclass(frozen=True)
class _Pass:
    """The result of one forward and backward pass.

    Attributes:
        loss: The loss.
        finite: Whether the gradients are finite.
        gradients: The gradients in one FP32 vector; None if the loss or a gradient is not finite.
    """

    loss: float
    finite: bool
    gradients: torch.Tensor | None


class LossWatch(FitObserver):
    """Checks the loss of each step, and diagnoses the first batch with NaN or an infinity.

    On a CPU the check costs nothing. On other devices the host does not wait for the loss. It learns of a bad one some
    steps later. From then on it waits for each loss, and diagnoses the first bad one. With ``gradients`` it waits in
    every step.

    Args:
        trainer: The Trainer, at the start of training.
        module: The LightningModule.
        diagnose: What to check.
        scale: Returns the loss scale, as far as the host knows; 1 without a scaler.
    """

    consequence = "NaN and infinities are not diagnosed"

    def __init__(self, trainer: Trainer, module: Module, diagnose: Diagnose, scale: Callable[[], float]) -> None:
        self.result: BadRun | None = None
        """The diagnosis, once there is one."""
        self._trainer = trainer
        self._module = module
        self._gradients = diagnose == "gradients"
        self._scale = scale
        self._device = trainer.strategy.root_device
        self._exact = self._gradients
        self._batch: Batch | None = None
        self._bad_loss = False
        self._pending: list[tuple[int, PendingVerdict]] = []
        self._first: int | None = None

    @staticmethod
    def applies(trainer: Trainer, module: Module) -> bool:
        """Return whether a batch of this training can be run again."""
        precision = str(getattr(trainer.precision_plugin, "precision", ""))
        return (
            precision in ("16-mixed", "bf16-mixed")
            and bool(module.automatic_optimization)
            and int(trainer.world_size) == 1
            and holds_whole_model(trainer)
        )

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:
        """A training batch starts: keep it until the next one."""
        if self.result is None:
            self._batch = Batch(batch, batch_idx, TorchRandomState(self._device))

    def on_before_backward(self, loss: Any) -> None:
        """A backward pass starts."""
        if self.result is not None or not isinstance(loss, torch.Tensor):
            return
        self._bad_loss = False
        bad = (~torch.isfinite(loss.detach()).all()).float()
        self._pending.append((step_number(self._trainer), PendingVerdict(bad)))
        # On a CPU the verdict is there at once. On other devices it arrives some steps later.
        while self._pending and (verdict := self._pending[0][1].read(wait=self._exact)) is not None:
            step, _ = self._pending.pop(0)
            if verdict:
                self._first = step if self._first is None else self._first
                self._exact = True
                self._bad_loss = not self._pending

    def on_after_backward(self) -> None:
        """The backward pass has ended, and the optimizer has not stepped yet."""
        if self.result is not None or self._batch is None:
            return
        if self._bad_loss:
            self._diagnose("loss")
        elif self._overflows_without_scale() or (self._gradients and not self._finite_gradients()):
            self._diagnose("gradients")

    def examine_drift(self) -> None:
        """Compare the current batch with FP32, because the training has drifted away from FP32."""
        if self.result is None and self._batch is not None:
            self._diagnose("drift")

    def results(self) -> dict[str, Any]:
        """Return the diagnosis."""
        return {"bad_run": self.result}

    def close(self) -> None:
        """Let go of the batch."""
        self._batch, self._pending = None, []

    def _overflows_without_scale(self) -> bool:
        """Return whether the scaler has skipped so many steps that no scale is left."""
        return self._scales_loss() and self._scale() < LOWEST_SCALE

    def _scales_loss(self) -> bool:
        return self._trainer.scaler is not None and bool(self._trainer.scaler.is_enabled())

    def _finite_gradients(self) -> bool:
        """Return whether all gradients are finite. Scaled ones may overflow: the scaler deals with that."""
        if self._scales_loss():
            return True
        gradients = [p.grad for p in self._module.parameters() if p.grad is not None and not p.grad.is_sparse]
        return all(bool(torch.isfinite(gradient).all()) for gradient in gradients)

    def _diagnose(self, symptom: Literal["loss", "gradients", "drift"]) -> None:
        batch, self._batch = self._batch, None
        if batch is None:
            return
        step = self._first if self._first is not None else step_number(self._trainer)
        precision = str(self._trainer.precision_plugin.precision)
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self._module.parameters()):
            self.result = BadRun(step, precision, symptom, weights_finite=False)
            return
        self.result = _Diagnosis(self._trainer, self._module, batch).make(step, precision, symptom)


class _Diagnosis:
    """Replays of one batch: in the run's precision, in FP32, and with more and more layers in FP32."""

    def __init__(self, trainer: Trainer, module: Module, batch: Batch) -> None:
        self._trainer = trainer
        self._module = module
        self._batch = batch
        self._names = layer_names(module)
        self._parameters = [p for p in module.parameters() if p.requires_grad]

    def make(self, step: int, precision: str, symptom: Literal["loss", "gradients", "drift"]) -> BadRun:
        """Diagnose the batch."""
        mixed_watch, watch = NonFiniteWatch(self._names), NonFiniteWatch(self._names)
        self._run(mixed_watch)
        mixed = self._run()
        with self._in_fp32():
            fp32 = self._run(watch)
        origin = _origin(mixed_watch.found, watch.found)
        sound = fp32.gradients is not None
        kept: tuple[str, ...] | None = None
        trials = 0
        cured: _Pass | None = None
        if sound and not _is_cured(mixed, fp32):
            search = CureSearch(self._module, lambda names: _is_cured(self._with_fp32(names), fp32))
            kept = search.find(origin.layer if origin is not None else "")
            trials = search.trials
            cured = self._with_fp32(kept) if kept else None
        return BadRun(
            step=step,
            precision=precision,
            symptom=symptom,
            layer=origin.layer if origin is not None else "",
            operator=origin.name if origin is not None else "",
            line=origin.line if origin is not None else "",
            backward=origin.backward if origin is not None else False,
            value=origin.value if origin is not None else "",
            dtype=origin.dtype if origin is not None else "",
            largest_input=origin.largest_input if origin is not None else None,
            loss=finite_or_none(mixed.loss),
            fp32_finite=sound,
            fp32_loss=finite_or_none(fp32.loss),
            keep_fp32=kept or (),
            cured_loss=finite_or_none(cured.loss) if cured is not None else None,
            trials=trials,
        )

    @contextmanager
    def _in_fp32(self) -> Iterator[None]:
        tf32 = Tf32Override("off")
        try:
            with plain_precision(self._trainer):
                yield
        finally:
            tf32.undo()

    def _with_fp32(self, names: Sequence[str]) -> _Pass:
        try:
            layers = Fp32Layers(self._module, names, self._device_type())
        except PrecisionError:  # such a layer is never called by itself
            return _Pass(float("nan"), False, None)
        try:
            return self._run()
        finally:
            layers.undo()

    def _device_type(self) -> str:
        return str(self._trainer.strategy.root_device.type)

    def _run(self, watch: NonFiniteWatch | None = None) -> _Pass:
        """Run the batch forward and backward."""
        if watch is not None:
            with unmarked(self._module):
                self._batch.random_state.restore()
                with watch:
                    return self._forward_and_backward(1.0)
        found = _Pass(float("nan"), False, None)
        for scale in self._scales():
            with unmarked(self._module):
                self._batch.random_state.restore()
                found = self._forward_and_backward(scale)
            if found.finite or finite_or_none(found.loss) is None:
                break
        return found

    def _scales(self) -> tuple[float, ...]:
        """Return loss scales to try: a larger one keeps small gradients, and a smaller one avoids overflows."""
        return (2.0**14, 2.0**7, 1.0) if self._trainer.precision_plugin.precision == "16-mixed" else (1.0,)

    def _forward_and_backward(self, scale: float) -> _Pass:
        batch = self._batch
        loss = replayed_step(self._trainer, self._module, batch.batch, batch.batch_idx)
        if loss is None or not loss.requires_grad:
            return _Pass(float("nan"), False, None)
        gradients = torch.autograd.grad(loss * scale, self._parameters, allow_unused=True)
        dense = [g.to_dense() if g.is_sparse else g for g in gradients if g is not None]
        finite = all(bool(torch.isfinite(gradient).all()) for gradient in dense)
        value = float(loss.detach())
        sound = finite and finite_or_none(value) is not None and bool(dense)
        return _Pass(value, finite, torch.cat([g.flatten().float() / scale for g in dense]) if sound else None)


def _is_cured(found: _Pass, fp32: _Pass) -> bool:
    if found.gradients is None or fp32.gradients is None or found.gradients.shape != fp32.gradients.shape:
        return False
    if abs(found.loss - fp32.loss) > LOSS_TOLERANCE * max(abs(fp32.loss), 1e-12):
        return False
    norms = float(found.gradients.norm() * fp32.gradients.norm())
    return norms == 0.0 or float(found.gradients @ fp32.gradients) >= SAME_DIRECTION * norms


def _origin(mixed: Sequence[NonFiniteOperator], fp32: Sequence[NonFiniteOperator]) -> NonFiniteOperator | None:
    """Return the first operator that is not finite in FP32 as well, as those that make a mask of infinities are."""
    benign = {one.key for one in fp32}
    suspects = [one for one in mixed if one.key not in benign] or list(mixed)
    made = [one for one in suspects if one.finite_inputs]
    return next(iter(made or suspects), None)
