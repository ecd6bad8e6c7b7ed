"""Looks at the gradients of an fp16 run on sampled steps: what of them underflows at the current loss scale."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lightning_perf.analysis.gradient_samples import Arithmetic, GradientSample, LayerGradients, encode_sample
from lightning_perf.analysis.underflow import UnderflowTable, tabulate_underflow
from lightning_perf.callbacks.error_reporter import Faults
from lightning_perf.callbacks.lightning_compat import Module
from lightning_perf.callbacks.numerics.gradient_counts import CountedGradients
from lightning_perf.callbacks.numerics.gradient_graph import GradientGraph, read_graph
from lightning_perf.callbacks.precision.fp32_layers import layer_name

__all__ = ["UnderflowMonitor"]

_PROBE_DOUBLINGS = (20, 10, 5)
"""Doublings of the scale that may bring values to light which underflow to zero, the next where one overflows."""

_logger = logging.getLogger("lightning_perf")


@dataclass(frozen=True)
class _Counted:
    """A sample whose counts may still be on their way from the device."""

    step: int
    scale: float
    arithmetic: tuple[Arithmetic, ...]
    counts: CountedGradients
    probe: _Probe | None


@dataclass(frozen=True)
class _Probe:
    """What a further backward pass showed of layers, at a scale that many doublings higher."""

    layers: tuple[int, ...]
    doublings: int
    counts: CountedGradients


class UnderflowMonitor:
    """Counts scaled gradient values by magnitude, on every n-th step.

    The counting is one small histogram on the device, copied to the host without waiting and read steps later. A layer
    whose gradient is zero throughout has either none or one that underflows: to tell which, one more backward pass is
    made on the next sampled step, with the loss scaled up further and the gradients thrown away.

    Args:
        module: The LightningModule.
        every_n_steps: Steps between samples.
        scale: Tells the loss scale.
        probe: Whether to make such passes. Not in a run of several processes: this one would make it alone, and wait
            for the others in every collective on the way (`SyncBatchNorm`'s, a gathering loss's).
        path: File to append samples to; None to write none.
        faults: Where a failing file is reported.
    """

    def __init__(
        self,
        module: Module,
        *,
        every_n_steps: int,
        scale: Callable[[], float],
        probe: bool,
        path: Path | None,
        faults: Faults,
    ) -> None:
        self._module = module
        self._every_n_steps = every_n_steps
        self._scale = scale
        self._path = path
        self._faults = faults
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
        doublings = _PROBE_DOUBLINGS if probe else ()
        self._probes_left = {layer: list(doublings) for layer in range(len(self._names))}
        self._waiting: list[_Counted] = []
        self._samples: list[GradientSample] = []

    @property
    def table(self) -> UnderflowTable | None:
        """The table of what was sampled so far; None before the first sample."""
        return tabulate_underflow(self._samples) if self._samples else None

    def batch_begins(self, step: int, *, first_of_step: bool) -> None:
        """A training batch begins.

        Args:
            step: Number of the step it belongs to.
            first_of_step: Whether gradients start from zero with it. Later batches of an accumulation add to them.
        """
        self._batch = step if first_of_step and step % self._every_n_steps == 0 else None

    def backward_begins(self, loss: torch.Tensor) -> None:
        """A backward pass begins, on a scaled loss."""
        if self._batch is None or loss.grad_fn is None:
            return
        self._graph = read_graph(loss)
        if self._to_probe:
            self._probe = self._try_larger_scale(loss, self._graph)

    def backward_ends(self) -> None:
        """The backward pass has ended: count what it left, before it is unscaled."""
        if self._batch is None or self._graph is None:
            return
        graph, self._graph = self._graph, None
        # In manual optimization another optimizer's gradients may be around, unscaled by now: the graph tells.
        all_fresh = bool(self._module.automatic_optimization)
        reached = [
            (layer, parameter)
            for layer, parameter in self._parameters
            if parameter.grad is not None and (all_fresh or id(parameter) in graph.casts)
        ]
        probe, self._probe = self._probe, None
        if reached:
            counts = CountedGradients([(layer, p.grad) for layer, p in reached if p.grad is not None], len(self._names))
            arithmetic = self._arithmetic(graph)
            self._waiting.append(_Counted(self._batch, self._scale(), arithmetic, counts, probe))

    def batch_ends(self) -> None:
        """A training batch has ended: take in what has arrived."""
        while self._waiting and self._waiting[0].counts.arrived:
            self._take(self._waiting.pop(0))

    def ends(self) -> None:
        """Training has ended or failed: take in the rest."""
        for counted in self._waiting:
            self._take(counted)
        self._waiting = []

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
        seen = {
            name: row
            for name, row in zip(self._names, rows, strict=True)
            if row.zeros or row.nonfinite or row.counts
        }  # fmt: skip
        sample = GradientSample(counted.step, counted.scale, seen, self._hidden(counted))
        self._samples.append(sample)
        if not any(row.nonfinite for row in rows):
            self._to_probe |= {
                layer
                for layer, row in enumerate(rows)
                if row.zeros and not row.counts and row.arithmetic != "fp32" and self._probes_left[layer]
            }
        if self._path is not None:
            try:
                with self._path.open("ab") as file:
                    file.write(encode_sample(sample))
            except OSError as error:
                self._path = None
                self._faults.report("gradient samples are no longer saved", error)

    def _hidden(self, counted: _Counted) -> dict[str, LayerGradients]:
        """What the probe showed, at the sample's own scale."""
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
