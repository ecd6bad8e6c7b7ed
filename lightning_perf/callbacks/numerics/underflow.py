"""Samples the gradients of an fp16 run, and counts how many underflow at the current loss scale."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.analysis.precision.scales import tabulate_underflow
from lightning_perf.callbacks.host_copy import HostCopy
from lightning_perf.callbacks.lightning_compat import Module, Trainer, step_number
from lightning_perf.callbacks.numerics.loss_scale import Unscaled
from lightning_perf.callbacks.precision.autograd_graph import GradientGraph, read_graph
from lightning_perf.callbacks.precision.fp32_layers import layer_name
from lightning_perf.callbacks.steps.fit_state import FitContext
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.numerics.samples import (
    GRADIENT_SAMPLES,
    LOWEST_EXPONENT,
    Arithmetic,
    GradientSample,
    LayerGradients,
)

VALUES_A_PARAMETER = 16_384
"""Values looked at in each parameter, evenly spread: enough to know a share to within half a percent."""

# FP32 as IEEE 754 lays it out: 23 bits of mantissa, then 8 of exponent with a bias of 127.
_MANTISSA_BITS = 23
_EXPONENT_BIAS = 127
_EXPONENTS = 256
_ZERO, _NONFINITE = 0, 255

_PROBE_DOUBLINGS = (20, 10, 5)
"""Doublings of the scale that may bring values to light which underflow to zero, the next where one overflows."""

_logger = logging.getLogger("lightning_perf")


class _Counted(Struct, frozen=True):
    """A sample. Its counts may not have arrived from the device yet."""

    step: int
    scale: float
    arithmetic: tuple[Arithmetic, ...]
    counts: CountedGradients
    probe: _Probe | None


class _Probe(Struct, frozen=True):
    """The result of one more backward pass for some layers, at a scale that many doublings higher."""

    layers: tuple[int, ...]
    doublings: int
    counts: CountedGradients


class UnderflowMonitor(FitObserver):
    """Counts scaled gradient values by magnitude, on every n-th step.

    The counting is one small histogram on the device, copied to the host without waiting and read steps later. If a
    layer's gradient is zero throughout, the layer either has none or one that underflows. To tell which, the next
    sampled step makes one more backward pass with a larger loss scale, and throws its gradients away.
    """

    consequence = "gradients are not monitored any more"

    def __init__(
        self, trainer: Trainer, module: Module, context: FitContext, *, every_n_steps: int, scaler: Unscaled
    ) -> None:
        self._trainer, self._module = trainer, module
        self._every_n_steps, self._scaler = every_n_steps, scaler
        self._file = context.writer(GRADIENT_SAMPLES, "gradient samples are no longer saved")
        self._names: list[str] = []
        self._parameters: list[tuple[int, torch.nn.Parameter]] = []
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                owner = layer_name(name).rpartition(".")[0] or name
                if owner not in self._names:
                    self._names.append(owner)
                self._parameters.append((self._names.index(owner), parameter))
        self._batch: int | None = None
        self._graph: GradientGraph | None = None
        self._probe: _Probe | None = None
        self._to_probe: set[int] = set()
        doublings = _PROBE_DOUBLINGS if int(trainer.world_size) == 1 else ()
        self._probes_left = {layer: list(doublings) for layer in range(len(self._names))}
        self._waiting: list[_Counted] = []
        self._samples: list[GradientSample] = []

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        step = step_number(self._trainer)
        # Gradients start from zero with the first batch of a step. Later ones of an accumulation add to them.
        first_of_step = batch_idx % self._trainer.accumulate_grad_batches == 0
        self._batch = step if first_of_step and step % self._every_n_steps == 0 else None

    def on_before_backward(self, loss: torch.Tensor) -> None:
        if self._batch is None or loss.grad_fn is None:
            return
        self._graph = read_graph(loss)
        if self._to_probe:
            self._probe = self._try_larger_scale(loss, self._graph)

    def on_after_backward(self) -> None:
        """Count the gradients that the backward pass left, before they are unscaled."""
        if self._batch is None or self._graph is None:
            return
        graph, self._graph = self._graph, None
        # In manual optimization another optimizer's gradients may be around, unscaled by now: the graph tells.
        all_fresh = bool(self._module.automatic_optimization)
        gradients = [
            (layer, parameter.grad)
            for layer, parameter in self._parameters
            if parameter.grad is not None and (all_fresh or id(parameter) in graph.casts)
        ]
        probe, self._probe = self._probe, None
        if gradients:
            counts = CountedGradients(gradients, len(self._names))
            arithmetic = self._arithmetic(graph)
            self._waiting.append(_Counted(self._batch, self._scaler.scale, arithmetic, counts, probe))

    def on_batch_end(self, outputs: Any) -> None:  # noqa: ARG002
        """A training batch has ended: read the counts that have arrived."""
        while self._waiting and self._waiting[0].counts.arrived:
            self._take(self._waiting.pop(0))

    def stop_waiting(self) -> None:
        self._waiting = []

    def results(self) -> dict[str, Any]:
        return {"underflow": tabulate_underflow(self._samples)} if self._samples else {}

    def finish(self) -> None:
        """Training has ended or failed: take in the rest."""
        for counted in self._waiting:
            self._take(counted)
        self._waiting = []

    def close(self) -> None:
        """Let go of the indices on the device."""
        _first_bins.cache_clear()

    def _arithmetic(self, graph: GradientGraph) -> tuple[Arithmetic, ...]:
        """Each layer's arithmetic: fp16 if one of its parameters was cast, unknown where the graph does not show it."""
        kinds: list[Arithmetic] = ["unknown"] * len(self._names)
        for layer, parameter in self._parameters:
            casts = graph.casts.get(id(parameter))
            if casts:
                kinds[layer] = "fp16"
            elif casts == 0 and kinds[layer] == "unknown" and not graph.compiled:
                kinds[layer] = "fp32"
        return tuple(kinds)

    def _try_larger_scale(self, loss: torch.Tensor, graph: GradientGraph) -> _Probe | None:
        doublings = min(self._probes_left[layer][0] for layer in self._to_probe)
        layers, self._to_probe = tuple(sorted(self._to_probe)), set()
        for layer in layers:
            self._probes_left[layer] = [left for left in self._probes_left[layer] if left < doublings]
        asked = [(layer, p) for layer, p in self._parameters if layer in layers and id(p) in graph.casts]
        if not asked:
            return None
        try:
            gradients = torch.autograd.grad(
                loss * 2.0**doublings, [p for _, p in asked], retain_graph=True, allow_unused=True
            )
        except RuntimeError as error:
            # Compiled code that frees its buffers, or checkpointing, allows one backward pass only.
            _logger.debug("whether gradients underflow to zero cannot be tried here", exc_info=error)
            return None
        found = [(layer, g) for (layer, _), g in zip(asked, gradients, strict=True) if g is not None]
        return _Probe(layers, doublings, CountedGradients(found, len(self._names))) if found else None

    def _take(self, counted: _Counted) -> None:
        rows = counted.counts.read(counted.arithmetic)
        named = zip(self._names, rows, strict=True)
        seen = {name: row for name, row in named if row.zeros or row.nonfinite or row.counts}
        sample = GradientSample(counted.step, counted.scale, seen, self._hidden(counted))
        self._samples.append(sample)
        if not any(row.nonfinite for row in rows):
            self._to_probe |= {
                layer
                for layer, row in enumerate(rows)
                if row.zeros and not row.counts and row.arithmetic != "fp32" and self._probes_left[layer]
            }
        self._file.append(sample)

    def _hidden(self, counted: _Counted) -> dict[str, LayerGradients]:
        """Return the result of the probe, at the sample's own scale."""
        if counted.probe is None:
            return {}
        hidden = {}
        rows = counted.probe.counts.read(counted.arithmetic)
        for layer in counted.probe.layers:
            row = rows[layer]
            if row.nonfinite:
                continue  # too large a scale: the next sample tries a smaller one
            self._probes_left[layer] = []
            first_exponent = row.first_exponent - counted.probe.doublings
            hidden[self._names[layer]] = replace(row, first_exponent=first_exponent)
        return hidden


class CountedGradients:
    """Counts of gradient values, known on the device now and on the host some time later.

    On other devices than CUDA's to read them is to wait for the device.
    """

    @torch.no_grad()
    def __init__(self, gradients: Sequence[tuple[int, torch.Tensor]], layers: int) -> None:
        picked = [_pick(gradient) for _, gradient in gradients]
        device = picked[0].device
        layout = tuple((layer, len(values)) for (layer, _), values in zip(gradients, picked, strict=True))
        values = torch.cat([values.float() for values in picked])
        # The exponent's own bits are the bin: no logarithm, no comparison.
        bins = values.view(torch.int32).bitwise_right_shift_(_MANTISSA_BITS).bitwise_and_(_EXPONENTS - 1)
        bins += _first_bins(layout, device)
        counts = torch.zeros(layers * _EXPONENTS, dtype=torch.int32, device=device)
        counts.index_add_(0, bins, torch.ones_like(bins))
        self._counts = HostCopy(counts)

    @property
    def arrived(self) -> bool:
        """Whether the counts are on the host."""
        return self._counts.arrived

    def read(self, arithmetic: Sequence[Arithmetic]) -> list[LayerGradients]:
        """Read the counts, waiting for them if they have not arrived."""
        rows = self._counts.read().reshape(-1, _EXPONENTS).tolist()
        return [_layer(row, kind) for row, kind in zip(rows, arithmetic, strict=True)]


def _pick(gradient: torch.Tensor) -> torch.Tensor:
    """At most `VALUES_A_PARAMETER` values, evenly spread, without copying more than those where memory allows."""
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    if gradient.dim() == 4 and gradient.is_contiguous(memory_format=torch.channels_last):
        gradient = gradient.permute(0, 2, 3, 1)
    flat = gradient.detach().reshape(-1)
    return flat[:: -(-len(flat) // VALUES_A_PARAMETER) or 1]


@lru_cache(maxsize=1)  # a run mostly has one layout, and the indices take memory of the device
def _first_bins(layout: tuple[tuple[int, int], ...], device: torch.device) -> torch.Tensor:
    """Return the first bin of each value's layer, by the layers and their numbers of values."""
    layers = torch.tensor([layer for layer, _ in layout], dtype=torch.int32)
    sizes = torch.tensor([size for _, size in layout])
    bins = torch.repeat_interleave(layers * _EXPONENTS, sizes)
    # From pageable memory the copy would wait for the device.
    return bins.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else bins.to(device)


def _layer(row: list[int], arithmetic: Arithmetic) -> LayerGradients:
    # FP32's own subnormals, below 2⁻¹²⁶, count as zeros.
    zeros, nonfinite = row[_ZERO], row[_NONFINITE]
    lowest = LOWEST_EXPONENT + _EXPONENT_BIAS
    normal = [sum(row[1 : lowest + 1]), *row[lowest + 1 : _NONFINITE]]
    present = [position for position, count in enumerate(normal) if count]
    first, last = (present[0], present[-1] + 1) if present else (0, 0)
    return LayerGradients(arithmetic, zeros, nonfinite, LOWEST_EXPONENT + first, tuple(normal[first:last]))
