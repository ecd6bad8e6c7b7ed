"""Shadow steps: a second forward and backward pass in FP32 on sampled batches, to compare losses and gradients."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.host_copy import HostCopy
from lightning_perf.callbacks.lightning_compat import Module, Trainer, step_number
from lightning_perf.callbacks.numerics.replay import fresh_batch, plain_precision, replayed_step, unmarked
from lightning_perf.callbacks.precision.fp32_layers import layer_name
from lightning_perf.callbacks.precision.switch import PrecisionError
from lightning_perf.callbacks.precision.tf32 import Tf32Override
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.jsonl import LogWriter
from lightning_perf.run_files.numerics.precision import finite_or_none
from lightning_perf.run_files.numerics.samples import SHADOW, LayerShadow, ShadowSample

__all__ = ["ShadowMonitor", "check_interval"]


def check_interval(shadow: int) -> int:
    """Check the option `shadow`.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is negative.
    """
    if isinstance(shadow, bool) or not isinstance(shadow, int):
        raise TypeError(
            f"shadow={shadow!r} has the wrong type: give the number of steps between shadow steps, e.g. 500"
        )
    if shadow < 0:
        raise ValueError(f"shadow={shadow} is negative: give the number of steps between shadow steps, or 0 for none")
    return shadow


@dataclass
class _Open:
    """A shadow step: the FP32 pass is done, and the run's own pass is under way."""

    step: int
    loss: torch.Tensor
    gradients: list[torch.Tensor | None]
    sums: torch.Tensor | None = None


class ShadowMonitor(FitObserver):
    """Runs the first batch of every n-th step through a second forward and backward pass in FP32.

    The pass comes before the run's own. It uses the same weights, buffers and random numbers, and leaves all of them as
    they were. It updates nothing and logs nothing. `torch.autograd.grad` returns its gradients, so the gradients and
    the gradient hooks of the parameters are not involved. Until the run's own backward pass has ended, one copy of all
    gradients stays in memory.

    Args:
        trainer: The Trainer, at the start of training.
        module: The LightningModule.
        every: Steps between two shadow steps.
        path: File to append samples to.
        errors: Where errors are reported.

    Raises:
        PrecisionError: The training uses manual optimization or several devices.
    """

    consequence = "the training is not compared with FP32 any more"

    def __init__(self, trainer: Trainer, module: Module, *, every: int, path: Path, errors: ErrorReporter) -> None:
        if not module.automatic_optimization or trainer.world_size > 1:
            raise PrecisionError(
                f"shadow={every} needs automatic optimization and one device, because it runs training_step again",
                "Leave out shadow, or train with Trainer(devices=1)",
            )
        self._trainer = trainer
        self._module = module
        self._every = every
        self._file = LogWriter(SHADOW, path, errors.report, "shadow steps are no longer saved")
        self._parameters: list[torch.nn.Parameter] = []
        self._layers: list[str] = []
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                self._parameters.append(parameter)
                self._layers.append(layer_name(name).rpartition(".")[0] or name)
        self._open: _Open | None = None
        self._waiting: deque[_Sums] = deque()
        self._start_ns = time.perf_counter_ns()
        self._cost_ns = 0

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:
        """A training batch starts: make the FP32 pass if it is the first batch of an n-th step."""
        self._open = None
        step = step_number(self._trainer)
        if step % self._every or batch_idx % self._trainer.accumulate_grad_batches:
            return
        began_ns = time.perf_counter_ns()
        tf32 = Tf32Override("off")
        try:
            with unmarked(self._module), plain_precision(self._trainer):
                loss = replayed_step(self._trainer, self._module, fresh_batch(batch), batch_idx)
                if loss is not None and loss.requires_grad:
                    gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
                    self._open = _Open(step, loss.detach(), list(gradients))
        finally:
            tf32.undo()
        _wait(self._trainer)
        self._cost_ns += time.perf_counter_ns() - began_ns

    def on_after_backward(self) -> None:
        """Compare the gradients that the run's own backward pass left with those in FP32."""
        if self._open is None or self._open.sums is not None:
            return
        began_ns = time.perf_counter_ns()
        scaler = self._trainer.scaler
        # The gradients still have the loss scale, and are those of the loss divided by the number of batches.
        scale = getattr(scaler, "_scale", None) if scaler is not None and scaler.is_enabled() else None
        rows = []
        with torch.no_grad():
            for parameter, exact in zip(self._parameters, self._open.gradients, strict=True):
                own = parameter.grad
                if own is None or exact is None or own.is_sparse or exact.is_sparse:
                    rows.append(torch.zeros(3, dtype=torch.float64, device=parameter.device))
                    continue
                own = own.float() * self._trainer.accumulate_grad_batches
                if scale is not None:
                    own = own / scale.to(own.device)
                rows.append(torch.stack([(own * exact).sum(), own.square().sum(), exact.square().sum()]).double())
            self._open.sums = torch.stack(rows)
        self._open.gradients = []
        self._cost_ns += time.perf_counter_ns() - began_ns

    def on_batch_end(self, outputs: Any) -> None:
        """A training batch has ended: note its loss, and write samples that have arrived from the device."""
        opened, self._open = self._open, None
        if opened is not None and opened.sums is not None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if isinstance(loss, torch.Tensor):
                own = loss.detach() * self._trainer.accumulate_grad_batches
                elapsed_ns = time.perf_counter_ns() - self._start_ns
                losses = torch.stack([own.double().reshape(()), opened.loss.double().reshape(())])
                self._waiting.append(_Sums(opened.step, opened.sums, losses, self._cost_ns, elapsed_ns))
        while self._waiting and self._waiting[0].arrived:
            self._write(self._waiting.popleft())

    def stop_waiting(self) -> None:
        """Forget the figures that have not arrived."""
        self._waiting.clear()

    def finish(self) -> None:
        """Training has ended or failed: write the rest."""
        while self._waiting:
            self._write(self._waiting.popleft())

    def _write(self, sums: _Sums) -> None:
        losses, rows = sums.read()
        by_layer: dict[str, list[float]] = {}
        for layer, row in zip(self._layers, rows, strict=True):
            total = by_layer.setdefault(layer, [0.0, 0.0, 0.0])
            for position, value in enumerate(row):
                total[position] += value
        whole = [sum(row[position] for row in rows) for position in range(3)]
        self._file.append(
            ShadowSample(
                step=sums.step,
                loss=finite_or_none(losses[0]),
                fp32_loss=finite_or_none(losses[1]),
                whole=_compared(whole),
                layers={layer: _compared(row) for layer, row in by_layer.items()},
                cost_ns=sums.cost_ns,
                elapsed_ns=sums.elapsed_ns,
            )
        )


class _Sums:
    """Sums of one step on their way to the host."""

    def __init__(self, step: int, rows: torch.Tensor, losses: torch.Tensor, cost_ns: int, elapsed_ns: int) -> None:
        self.step, self.cost_ns, self.elapsed_ns = step, cost_ns, elapsed_ns
        figures = torch.cat([losses, rows.flatten()])
        self._figures = HostCopy(figures)

    @property
    def arrived(self) -> bool:
        return self._figures.arrived

    def read(self) -> tuple[list[float], list[list[float]]]:
        """Return both losses, and for each parameter the product and the squares of both gradients."""
        figures = self._figures.read()
        return figures[:2].tolist(), figures[2:].reshape(-1, 3).tolist()


def _compared(sums: list[float]) -> LayerShadow:
    product, own, exact = sums
    if not (own > 0 and exact > 0 and math.isfinite(own) and math.isfinite(exact)):
        return LayerShadow(None, None)
    # Rounding may leave a cosine slightly above 1.
    cosine = max(-1.0, min(1.0, product / math.sqrt(own * exact)))
    return LayerShadow(cosine, math.sqrt(own / exact))


def _wait(trainer: Trainer) -> None:
    """Wait for the device, so that the time of the pass is known. A shadow step is slow anyway."""
    device = trainer.strategy.root_device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
