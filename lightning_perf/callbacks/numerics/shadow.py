"""`shadow`: a second forward and backward pass in FP32 on sampled batches, to compare losses and gradients."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from lightning_perf.callbacks.lightning_compat import step_number
from lightning_perf.callbacks.numerics.replay import Replay, ReplayedPass, loss_of
from lightning_perf.callbacks.precision.fp32_layers import layer_name
from lightning_perf.callbacks.precision.switch import PrecisionError
from lightning_perf.callbacks.steps.fit_state import FitContext
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.numerics.precision import finite_or_none
from lightning_perf.run_files.numerics.samples import SHADOW, LayerShadow, ShadowSample


def check_interval(shadow: int) -> int:
    """Check the option `shadow`."""
    if isinstance(shadow, bool) or not isinstance(shadow, int):
        raise TypeError(
            f"shadow={shadow!r} has the wrong type: give the number of steps between shadow steps, e.g. 500"
        )
    if shadow < 0:
        raise ValueError(f"shadow={shadow} is negative: give the number of steps between shadow steps, or 0 for none")
    return shadow


class ShadowMonitor(FitObserver):
    """Runs the first batch of every n-th step through a second forward and backward pass in FP32.

    The pass comes before the run's own, with the same weights, buffers and random numbers. Until the run's own backward
    pass has ended, one copy of all gradients stays in memory.
    """

    consequence = "the training is not compared with FP32 any more"

    def __init__(self, replay: Replay, context: FitContext, every: int) -> None:
        if not replay.possible:
            raise PrecisionError(
                f"shadow={every} needs automatic optimization and one device, because it runs training_step again",
                "Leave out shadow, or train with Trainer(devices=1)",
            )
        self._replay = replay
        self._trainer = replay.trainer
        self._every = every
        self._file = context.writer(SHADOW, "shadow steps are no longer saved")
        self._parameters = {name: p for name, p in replay.module.named_parameters() if p.requires_grad}
        self._exact: ReplayedPass | None = None
        self._sums: torch.Tensor | None = None
        self._step = 0
        self._start_ns = time.perf_counter_ns()
        self._cost_ns = 0

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:
        """A training batch starts: make the FP32 pass if it is the first batch of an n-th step."""
        self._exact = self._sums = None
        self._step = step_number(self._trainer)
        if self._step % self._every or batch_idx % self._trainer.accumulate_grad_batches:
            return
        began_ns = time.perf_counter_ns()
        self._exact = self._replay.run(self._replay.keep(batch, batch_idx), fp32=True)
        device = self._trainer.strategy.root_device
        if device.type == "cuda":  # so that the time of the pass is known
            torch.cuda.synchronize(device)
        self._cost_ns += time.perf_counter_ns() - began_ns

    def on_after_backward(self) -> None:
        """Compare the gradients that the run's own backward pass left with those in FP32."""
        if self._exact is None or self._sums is not None:
            return
        began_ns = time.perf_counter_ns()
        self._sums = self._compared_with(self._exact.gradients)
        self._exact.gradients.clear()
        self._cost_ns += time.perf_counter_ns() - began_ns

    def on_batch_end(self, outputs: Any) -> None:
        """A training batch has ended: write the sample. The host waits for it: a shadow step is slow anyway."""
        loss = loss_of(outputs)
        if self._exact is not None and self._sums is not None and loss is not None:
            elapsed_ns = time.perf_counter_ns() - self._start_ns
            own = float(loss.detach() * self._trainer.accumulate_grad_batches)
            rows = dict(zip(self._parameters, self._sums.tolist(), strict=True))
            self._write(own, float(self._exact.loss), rows, elapsed_ns)
        self._exact = self._sums = None

    @torch.no_grad()
    def _compared_with(self, exact: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return a row for each parameter: the product of both gradients, and the square of each."""
        scaler = self._trainer.scaler
        # The gradients still have the loss scale, and are those of the loss divided by the number of batches.
        scale = getattr(scaler, "_scale", None) if scaler is not None and scaler.is_enabled() else None
        rows = []
        for name, parameter in self._parameters.items():
            own, other = parameter.grad, exact.get(name)
            if own is None or other is None or own.is_sparse or other.is_sparse:
                rows.append(torch.zeros(3, dtype=torch.float64, device=parameter.device))
                continue
            own = own.float() * self._trainer.accumulate_grad_batches
            if scale is not None:
                own = own / scale.to(own.device)
            rows.append(torch.stack([(own * other).sum(), own.square().sum(), other.square().sum()]).double())
        return torch.stack(rows)

    def _write(self, loss: float, fp32_loss: float, rows: dict[str, list[float]], elapsed_ns: int) -> None:
        by_layer: dict[str, list[list[float]]] = {}
        for name, row in rows.items():
            by_layer.setdefault(layer_name(name).rpartition(".")[0] or name, []).append(row)
        self._file.append(
            ShadowSample(
                step=self._step,
                loss=finite_or_none(loss),
                fp32_loss=finite_or_none(fp32_loss),
                whole=_compared(rows.values()),
                layers={layer: _compared(part) for layer, part in by_layer.items()},
                cost_ns=self._cost_ns,
                elapsed_ns=elapsed_ns,
            )
        )


def _compared(rows: Iterable[Sequence[float]]) -> LayerShadow:
    product, own, exact = map(sum, zip(*rows, strict=True))
    if not (own > 0 and exact > 0 and math.isfinite(own) and math.isfinite(exact)):
        return LayerShadow(None, None)
    # Rounding may leave a cosine slightly above 1.
    cosine = max(-1.0, min(1.0, product / math.sqrt(own * exact)))
    return LayerShadow(cosine, math.sqrt(own / exact))
