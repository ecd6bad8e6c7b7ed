"""Samples the layers of a training for the forecast of number formats, within a share of the fit's time."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from lightning_perf.callbacks.forecast.matrices import MatrixSampler, covered_layers
from lightning_perf.callbacks.forecast.rounding import RoundedLayer
from lightning_perf.callbacks.forecast.sampling import ForecastBudget, LayerHooks
from lightning_perf.callbacks.lightning_compat import Module, Trainer, holds_whole_model, step_number
from lightning_perf.callbacks.steps.fit_state import FitContext
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.numerics.samples import FORECAST, LayerSample

BUDGET = 0.01
"""Share of the fit's time that the forecast takes by default, at most."""

FIRST_BATCH = 20
"""Batch of the first samples, after the warm-up and the profiler's first window; earlier in a short fit."""

GAP = 50
"""Fewest batches between two samples of a layer."""

GROWTH = 1.25
"""Later gaps grow by this factor, so that a long training has samples from its whole length."""

HISTORY = 16
"""Earlier batches that delayed scaling takes the largest magnitude from, at most."""

LARGEST_SCALE_EXPONENT = 16
"""torch's first loss scale is 2¹⁶. The forecast of FP16 assumes no larger one."""

SAMPLED_ELEMENTS = 6 * 32 * 4096
"""Elements of a layer's samples, at most."""

MOST_WAITING_BYTES = 256 * 2**20
"""Samples of one batch take no more memory than this. The remaining layers have their turn in the next samples."""

_Largest = dict[str, torch.Tensor]


def check_share(forecast: bool | float) -> float | None:
    """Check the option `forecast`, and return the share of the fit's time that it allows; None for no forecast."""
    if isinstance(forecast, bool):
        return BUDGET if forecast else None
    if not isinstance(forecast, (int, float)):
        raise TypeError(
            f"forecast={forecast!r} has the wrong type: give True, False, or a share of the fit such as 0.01"
        )
    if not 0 < forecast <= 1:
        raise ValueError(f"forecast={forecast!r} must be True, False, or a share of the fit's time above 0, up to 1")
    return float(forecast)


@dataclass
class _Captured:
    """Samples of one layer on one batch that are not rounded yet."""

    step: int
    name: str
    sampler: MatrixSampler
    largest: _Largest
    earlier: _Largest
    gradient_scale: torch.Tensor


class ForecastMonitor(FitObserver):
    """Samples linear layers and convolutions, and counts how number formats would round them.

    A sample takes two batches. On the first, hooks read the largest magnitudes of all tensors, for delayed scaling and
    the loss scale. On the second, hooks also copy sampled rows. The copies are rounded later, a few layers per batch,
    whenever the budget has room.

    Args:
        share: Share of the fit's time to spend at most. The first sample of every layer is always finished, at the
            latest at the end of the fit.
    """

    consequence = "number formats are not forecast"

    def __init__(self, trainer: Trainer, module: Module, context: FitContext, share: float) -> None:
        device = trainer.strategy.root_device
        self._trainer = trainer
        self._state = context.state
        self._file = context.writer(FORECAST, "samples for the forecast are no longer saved")
        self._budget = ForecastBudget(share, device)
        self._generator = torch.Generator(device=device)
        self._generator.manual_seed(0)
        scaler = trainer.scaler
        self._scaled = scaler is not None and scaler.is_enabled()
        self._layers = covered_layers(module) if holds_whole_model(trainer) else {}
        if not self._layers:
            raise ValueError(
                "the model has no linear layer or convolution that a forecast covers: layers of a compiled or sharded "
                "model and convolutions with several groups are left out"
            )
        self._batch = self._step = 0
        steps = context.loop.expected_steps
        middle = FIRST_BATCH if steps is None else steps * int(trainer.accumulate_grad_batches) // 2 - 1
        self._next = max(min(FIRST_BATCH, middle), 0)
        self._sampled: dict[str, int] = dict.fromkeys(self._layers, 0)
        self._history: dict[str, deque[_Largest]] = {name: deque(maxlen=HISTORY) for name in self._layers}
        self._warm = False
        self._hooks = LayerHooks()
        self._largest: dict[str, _Largest] = {}
        self._samplers: dict[str, MatrixSampler] = {}
        self._wanted: set[str] = set()
        self._waiting: deque[_Captured] = deque()
        self._rounded: deque[tuple[_Captured, RoundedLayer]] = deque()
        self._layer_cost_ns = 0.0
        self._capture_cost_ns = 0

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """A training batch starts: attach hooks if it is to be sampled."""
        if self._waiting or self._batch < self._next or self._state.profiling:
            return
        first = not any(self._sampled.values())
        if not self._warm and not first and not self._budget.allows(self._capture_cost_ns):
            return
        self._step = step_number(self._trainer)
        self._state.own_passes = True
        with self._budget.charged():
            self._largest, self._samplers = {}, {}
            self._wanted = self._choose() if self._warm else set()
            for name, layer in self._layers.items():
                self._hooks.on_forward(layer, partial(self._read_forward, name))

    def on_batch_end(self, outputs: Any) -> None:  # noqa: ARG002
        """A training batch has ended: remove the hooks, and round layers while the budget lasts."""
        self._batch += 1
        self._hooks.check()
        if self._hooks:
            with self._budget.charged():
                self._hooks.remove()
                self._keep()
        while self._waiting and self._budget.allows(self._layer_cost_ns):
            self._round()
        self._write()

    def stop_waiting(self) -> None:
        self._waiting.clear()
        self._rounded.clear()

    def close(self) -> None:
        self._hooks.remove()

    def finish(self) -> None:
        """Training has ended or failed: finish the first sample of each layer, and write the rest."""
        self._hooks.remove()
        if self._hooks.error is not None:
            return
        while self._waiting:
            if self._sampled[self._waiting[0].name] > 1:
                self._waiting.popleft()
            else:
                self._round()
        self._write(wait=True)

    def _choose(self) -> set[str]:
        """Choose the layers of the next sample: those with the fewest samples first."""
        chosen, taken_bytes = set(), 0
        for name in sorted(self._layers, key=lambda name: self._sampled[name]):
            if taken_bytes > MOST_WAITING_BYTES:
                break
            chosen.add(name)
            layer: Any = self._layers[name]
            taken_bytes += SAMPLED_ELEMENTS * (4 if layer.weight.element_size() == 4 else 2)
        return chosen

    def _read_forward(self, name: str, layer: Any, inputs: Any, output: Any) -> None:
        if not layer.training or not inputs or not isinstance(inputs[0], torch.Tensor):
            return
        seen = self._largest.get(name)
        # A checkpointed layer runs twice: first without a graph, and then again for its gradient.
        if seen is not None and ("gradient" in seen or not output.requires_grad):
            return
        with self._budget.charged():
            activation = inputs[0].detach()
            seen = self._largest[name] = {"activation": _largest(activation), "weight": _largest(layer.weight)}
            if name in self._wanted:
                self._samplers[name] = MatrixSampler(layer, activation, output, self._generator)
        if output.requires_grad:
            seen["gradient"] = torch.zeros_like(seen["activation"])
            self._hooks.on_gradient(output, partial(self._read_gradient, name, seen, self._samplers.get(name)))

    def _read_gradient(self, name: str, seen: _Largest, sampler: MatrixSampler | None, gradient: torch.Tensor) -> None:
        if self._largest.get(name) is not seen:
            return
        with self._budget.charged():
            seen["gradient"] = _largest(gradient)
            if sampler is not None:
                sampler.add_gradient(gradient.detach())

    def _keep(self) -> None:
        """Take the figures that the hooks of the last batch left."""
        largest, samplers = self._largest, self._samplers
        self._largest, self._samplers = {}, {}
        if not self._warm:
            for name, seen in largest.items():
                self._history[name].append(seen)
            if largest:
                self._warm = True
            else:
                self._next = self._batch + GAP  # no layer was called: the model may run compiled
            return
        self._warm = False
        self._next = max(self._batch + GAP, math.ceil(self._batch * GROWTH))
        scale = self._gradient_scale()
        for name, sampler in samplers.items():
            history = self._history[name]
            if not history:
                continue
            earlier = {
                tensor: torch.stack([seen[tensor] for seen in history if tensor in seen]).amax()
                for tensor in history[-1]
            }
            now = largest[name]
            for tensor in now:
                earlier.setdefault(tensor, now[tensor])
            self._waiting.append(_Captured(self._step, name, sampler, now, earlier, scale))
            self._sampled[name] += 1
        for name, seen in largest.items():
            self._history[name].append(seen)
        if not self._capture_cost_ns:
            self._capture_cost_ns = self._budget.cost_ns  # nothing is rounded yet

    def _gradient_scale(self) -> torch.Tensor:
        """Return the loss scale that FP16 would have: the largest power of two that leaves a bit of headroom."""
        gradients = [seen["gradient"] for history in self._history.values() for seen in history if "gradient" in seen]
        if not gradients or self._scaled:  # the gradients of an FP16 training are scaled already
            return torch.ones((), device=self._generator.device)
        _, exponent = torch.frexp(torch.stack(gradients).amax())
        return torch.exp2((15 - exponent).clamp(max=LARGEST_SCALE_EXPONENT).float())

    def _round(self) -> None:
        captured = self._waiting.popleft()
        self._state.own_passes = True
        before_ns = self._budget.cost_ns
        with self._budget.charged():
            layer = RoundedLayer(
                captured.sampler.samples(), captured.largest, captured.earlier, captured.gradient_scale
            )
        self._layer_cost_ns = max(self._layer_cost_ns * 0.9, float(self._budget.cost_ns - before_ns))
        self._rounded.append((captured, layer))

    def _write(self, *, wait: bool = False) -> None:
        samples = []
        while self._rounded and (wait or self._rounded[0][1].arrived):
            captured, layer = self._rounded.popleft()
            gradient_scale, tensors, products = layer.read()
            if not all(math.isfinite(tensor.largest) for tensor in tensors.values()):
                continue  # an overflowing step says nothing about the usual ones
            samples.append(
                LayerSample(
                    captured.step,
                    captured.name,
                    *captured.sampler.shape,
                    gradient_scale=gradient_scale,
                    tensors=tensors,
                    products=products,
                    cost_ns=self._budget.cost_ns,
                    elapsed_ns=self._budget.elapsed_ns,
                )
            )
        self._file.append(*samples)


def _largest(tensor: torch.Tensor) -> torch.Tensor:
    largest: torch.Tensor = torch.linalg.vector_norm(tensor.detach(), float("inf"), dtype=torch.float32)
    return largest
