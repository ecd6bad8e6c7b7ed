"""Watches trainings in FP8: scales, saturation and underflow of torchao's and Transformer Engine's layers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.forecast.formats import round_values
from lightning_perf.callbacks.host_copy import HostCopy, copy_scalars
from lightning_perf.callbacks.lightning_compat import Module, Trainer, step_number
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.jsonl import LogWriter
from lightning_perf.run_files.numerics.samples import FP8, Fp8Sample, Fp8Tensor

EVERY_N_STEPS = 100
"""Steps between two samples."""

VALUES = 16_384
"""Sampled values of a tensor, in whole rows."""

_LIMITS = {"e4m3": 448.0, "e5m2": 57344.0}

# Positions in Transformer Engine's metadata of a layer (transformer_engine/pytorch/fp8.py, FP8FwdTensors and
# FP8BwdTensors): input and weight of the first product, and gradient of its output.
_TE_TENSORS = (("activation", "scaling_fwd", 0), ("weight", "scaling_fwd", 1), ("gradient", "scaling_bwd", 0))


def fp8_layers(module: Module) -> dict[str, Any]:
    """Return the layers of a model that compute in FP8, by name."""
    return {
        name: layer for name, layer in module.named_modules() if _is_torchao(layer) or _is_transformer_engine(layer)
    }


class Fp8Monitor(FitObserver):
    """Samples the FP8 layers of a training on every 100th step.

    torchao computes new scales for every tensor, and keeps none. Hooks on one batch read the tensors, and the
    scales follow from the layer's settings. Transformer Engine keeps scales and a history of largest magnitudes in the
    layer's ``fp8_meta``. They are read after the batch.
    """

    consequence = "the FP8 layers are not watched any more"

    def __init__(self, trainer: Trainer, layers: dict[str, Any], *, path: Path, errors: ErrorReporter) -> None:
        self._trainer = trainer
        self._layers = layers
        self._file = LogWriter(FP8, path, errors.report, "samples of FP8 layers are no longer saved")
        self._handles: list[Any] = []
        self._step: int | None = None
        self._last = -1
        self._seen: dict[str, dict[str, tuple[str, list[torch.Tensor]]]] = {}
        self._waiting: deque[tuple[HostCopy, Callable[[list[float]], list[Fp8Sample]]]] = deque()
        self._failed: Exception | None = None

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """A training batch starts: attach hooks on every 100th step."""
        step = step_number(self._trainer)
        self._step = step if step % EVERY_N_STEPS == 0 and step != self._last else None
        if self._step is None or self._failed is not None:
            return
        self._last, self._seen = step, {}
        self._handles = [
            layer.register_forward_hook(self._on_forward(name))
            for name, layer in self._layers.items()
            if _is_torchao(layer)
        ]

    def on_batch_end(self, outputs: Any) -> None:  # noqa: ARG002
        """A training batch has ended: keep its figures, and write those that have arrived from the device."""
        self._remove_hooks()
        if self._failed is not None:
            raise self._failed
        if self._step is not None:
            self._keep_torchao(self._step)
            self._keep_transformer_engine(self._step)
        while self._waiting and self._waiting[0][0].arrived:
            self._write()

    def stop_waiting(self) -> None:
        """Forget the figures that have not arrived."""
        self._waiting.clear()

    def close(self) -> None:
        """Remove the hooks of the layers."""
        self._remove_hooks()

    def finish(self) -> None:
        """Training has ended or failed: write the rest."""
        self._remove_hooks()
        while self._waiting:
            self._write()

    def _write(self) -> None:
        figures, samples = self._waiting.popleft()
        self._file.append(*samples(figures.read().tolist()))

    def _on_forward(self, name: str) -> Callable[..., None]:
        def hook(layer: Any, inputs: Any, output: Any) -> None:
            if self._failed is not None or name in self._seen:
                return
            try:
                config = layer.config
                seen = self._seen[name] = {
                    "activation": _torchao_figures(inputs[0], config.cast_config_input),
                    "weight": _torchao_figures(layer.weight, config.cast_config_weight),
                }
                if output.requires_grad:
                    output.register_hook(self._on_gradient(seen, config.cast_config_grad_output))
            except Exception as error:  # the user's forward pass continues
                self._failed = error

        return hook

    def _on_gradient(self, seen: dict[str, Any], config: Any) -> Callable[..., None]:
        def hook(gradient: torch.Tensor) -> None:
            try:
                seen.setdefault("gradient", _torchao_figures(gradient, config))
            except Exception as error:  # the user's backward pass continues
                self._failed = error

        return hook

    def _keep_torchao(self, step: int) -> None:
        seen, self._seen = self._seen, {}
        figures = [each for tensors in seen.values() for _, found in tensors.values() for each in found]
        if not figures:
            return

        def samples(values: list[float]) -> list[Fp8Sample]:
            following = iter(values)
            rows = []
            for name, tensors in seen.items():
                read = {
                    tensor: _tensor(form, [next(following) for _ in found]) for tensor, (form, found) in tensors.items()
                }
                rows.append(Fp8Sample(step, name, "torchao", read))
            return rows

        self._waiting.append((copy_scalars(figures), samples))

    def _keep_transformer_engine(self, step: int) -> None:
        found: list[tuple[str, str, str]] = []
        figures: list[torch.Tensor] = []
        for name, layer in self._layers.items():
            if not _is_transformer_engine(layer):
                continue
            for tensor, key, position in _TE_TENSORS:
                meta = layer.fp8_meta.get(key)
                scale, history = getattr(meta, "scale", None), getattr(meta, "amax_history", None)
                if scale is None or history is None or position >= len(scale):
                    continue  # current scaling and block scaling keep no history
                found.append((name, tensor, _te_format(layer, key)))
                # The library moves the newest magnitude to the second row before the next pass.
                newest = history[:2, position].amax()
                figures += [newest, history[:, position].amax(), scale[position]]
        if not found:
            return

        def samples(values: list[float]) -> list[Fp8Sample]:
            by_layer: dict[str, dict[str, Fp8Tensor]] = {}
            for index, (name, tensor, form) in enumerate(found):
                largest, history_largest, scale = values[3 * index : 3 * index + 3]
                by_layer.setdefault(name, {})[tensor] = Fp8Tensor(_name(form), largest, history_largest, scale)
            return [Fp8Sample(step, name, "transformer-engine", tensors) for name, tensors in by_layer.items()]

        self._waiting.append((copy_scalars(figures), samples))

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _is_torchao(layer: Any) -> bool:
    return type(layer).__name__ == "Float8Linear" and hasattr(getattr(layer, "config", None), "cast_config_input")


def _is_transformer_engine(layer: Any) -> bool:
    return type(layer).__module__.startswith("transformer_engine") and isinstance(
        getattr(layer, "fp8_meta", None), dict
    )


@torch.no_grad()
def _torchao_figures(tensor: torch.Tensor, config: Any) -> tuple[str, list[torch.Tensor]]:
    """Return the format, and figures on the device: largest magnitude, values, flushed, saturated."""
    form = "e4m3" if config.target_dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz) else "e5m2"
    rows = tensor.detach().reshape(-1, tensor.shape[-1])
    picked = rows[:: math.ceil(rows.numel() / VALUES) or 1].float()
    largest = torch.linalg.vector_norm(rows, float("inf"), dtype=torch.float32)
    by_row = str(getattr(config.scaling_granularity, "value", config.scaling_granularity)) == "axiswise"
    reference = picked.abs().amax(-1, keepdim=True) if by_row else largest
    rounded = round_values(picked, form, largest=reference, earlier_largest=reference)
    nonzero = picked != 0
    figures = [largest, nonzero.sum(), ((rounded.values == 0) & nonzero).sum(), rounded.saturated.sum()]
    return form, figures


def _tensor(form: str, figures: Sequence[float]) -> Fp8Tensor:
    largest, values, flushed, saturated = figures
    scale = _LIMITS[form] / largest if largest > 0 else 1.0
    return Fp8Tensor(_name(form), largest, None, scale, int(values), int(flushed), int(saturated))


def _te_format(layer: Any, key: str) -> str:
    recipe = layer.fp8_meta.get("recipe")
    name = str(getattr(getattr(recipe, "fp8_format", None), "name", "HYBRID"))
    return "e5m2" if name == "E5M2" or (name == "HYBRID" and key == "scaling_bwd") else "e4m3"


def _name(form: str) -> Literal["e4m3", "e5m2"]:
    return "e5m2" if form == "e5m2" else "e4m3"
