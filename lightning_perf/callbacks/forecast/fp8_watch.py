"""Watches trainings in FP8: scales, saturation and underflow of torchao's and Transformer Engine's layers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch
from msgspec import Struct

from lightning_perf.callbacks.forecast.formats import round_values
from lightning_perf.callbacks.forecast.sampling import LayerHooks
from lightning_perf.callbacks.host_copy import HostCopy, copy_scalars
from lightning_perf.callbacks.lightning_compat import Module, Trainer, step_number
from lightning_perf.callbacks.steps.fit_state import FitContext
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.numerics.samples import FP8, Fp8Sample, Fp8Tensor

EVERY_N_STEPS = 100
"""Steps between two samples."""

VALUES = 16_384
"""Sampled values of a tensor, in whole rows."""

_Form = Literal["e4m3", "e5m2"]
_LIMITS: dict[_Form, float] = {"e4m3": 448.0, "e5m2": 57344.0}

# Positions in Transformer Engine's metadata of a layer (transformer_engine/pytorch/fp8.py, FP8FwdTensors and
# FP8BwdTensors): input and weight of the first product, and gradient of its output.
_TE_TENSORS = (("activation", "scaling_fwd", 0), ("weight", "scaling_fwd", 1), ("gradient", "scaling_bwd", 0))


class _Seen(Struct, frozen=True):
    """A tensor of a layer, with its figures on the device.

    Attributes:
        figures: Of torchao: largest magnitude, values, flushed, saturated. Of Transformer Engine: the newest
            magnitude in the history, and the scale.
    """

    layer: str
    library: Literal["torchao", "transformer-engine"]
    tensor: str
    form: _Form
    figures: list[torch.Tensor]

    def read(self, figures: Sequence[float]) -> Fp8Tensor:
        """Return the tensor with its figures on the host."""
        if self.library == "transformer-engine":
            largest, scale = figures
            return Fp8Tensor(self.form, largest, scale)
        largest, values, flushed, saturated = figures
        scale = _LIMITS[self.form] / largest if largest > 0 else 1.0
        return Fp8Tensor(self.form, largest, scale, int(values), int(flushed), int(saturated))


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

    def __init__(self, trainer: Trainer, layers: dict[str, Any], context: FitContext) -> None:
        self._trainer = trainer
        self._layers = layers
        self._file = context.writer(FP8, "samples of FP8 layers are no longer saved")
        self._hooks = LayerHooks()
        self._step: int | None = None
        self._last = -1
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._waiting: deque[tuple[int, list[_Seen], HostCopy]] = deque()

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """A training batch starts: attach hooks on every 100th step."""
        step = step_number(self._trainer)
        self._step = step if step % EVERY_N_STEPS == 0 and step != self._last else None
        if self._step is None:
            return
        self._last, self._seen = step, {}
        for name, layer in self._layers.items():
            if _is_torchao(layer):
                self._hooks.on_forward(layer, partial(self._read_forward, name))

    def on_batch_end(self, outputs: Any) -> None:  # noqa: ARG002
        """A training batch has ended: keep its figures, and write those that have arrived from the device."""
        self._hooks.remove()
        self._hooks.check()
        if self._step is not None:
            seen = [*self._seen.values(), *_kept_by_transformer_engine(self._layers)]
            self._seen = {}
            if seen:
                figures = copy_scalars([figure for each in seen for figure in each.figures])
                self._waiting.append((self._step, seen, figures))
        while self._waiting and self._waiting[0][2].arrived:
            self._write()

    def stop_waiting(self) -> None:
        self._waiting.clear()

    def close(self) -> None:
        self._hooks.remove()

    def finish(self) -> None:
        self._hooks.remove()
        while self._waiting:
            self._write()

    def _write(self) -> None:
        step, seen, copied = self._waiting.popleft()
        figures = iter(copied.read().tolist())
        layers: dict[str, Fp8Sample] = {}
        for each in seen:
            sample = layers.setdefault(each.layer, Fp8Sample(step, each.layer, each.library, {}))
            sample.tensors[each.tensor] = each.read([next(figures) for _ in each.figures])
        self._file.append(*layers.values())

    def _read_forward(self, name: str, layer: Any, inputs: Any, output: Any) -> None:
        if (name, "weight") in self._seen:
            return
        config = layer.config
        self._read(name, "activation", config.cast_config_input, inputs[0])
        self._read(name, "weight", config.cast_config_weight, layer.weight)
        if output.requires_grad:
            self._hooks.on_gradient(output, partial(self._read, name, "gradient", config.cast_config_grad_output))

    @torch.no_grad()
    def _read(self, name: str, tensor: str, config: Any, values: torch.Tensor) -> None:
        form: _Form = "e4m3" if config.target_dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz) else "e5m2"
        rows = values.detach().reshape(-1, values.shape[-1])
        picked = rows[:: math.ceil(rows.numel() / VALUES) or 1].float()
        largest = torch.linalg.vector_norm(rows, float("inf"), dtype=torch.float32)
        by_row = str(getattr(config.scaling_granularity, "value", config.scaling_granularity)) == "axiswise"
        reference = picked.abs().amax(-1, keepdim=True) if by_row else largest
        rounded = round_values(picked, form, largest=reference, earlier_largest=reference)
        nonzero = picked != 0
        figures = [largest, nonzero.sum(), ((rounded.values == 0) & nonzero).sum(), rounded.saturated.sum()]
        self._seen.setdefault((name, tensor), _Seen(name, "torchao", tensor, form, figures))


def _kept_by_transformer_engine(layers: dict[str, Any]) -> Iterator[_Seen]:
    for name, layer in layers.items():
        if not _is_transformer_engine(layer):
            continue
        recipe = getattr(layer.fp8_meta.get("recipe"), "fp8_format", None)
        formats = str(getattr(recipe, "name", "HYBRID"))
        for tensor, key, position in _TE_TENSORS:
            meta = layer.fp8_meta.get(key)
            scale, history = getattr(meta, "scale", None), getattr(meta, "amax_history", None)
            if scale is None or history is None or position >= len(scale):
                continue  # current scaling and block scaling keep no history
            of_gradients = key == "scaling_bwd"
            form: _Form = "e5m2" if formats == "E5M2" or (formats == "HYBRID" and of_gradients) else "e4m3"
            # The library moves the newest magnitude to the second row before the next pass.
            figures = [history[:2, position].amax(), scale[position]]
            yield _Seen(name, "transformer-engine", tensor, form, figures)


def _is_torchao(layer: Any) -> bool:
    return type(layer).__name__ == "Float8Linear" and hasattr(getattr(layer, "config", None), "cast_config_input")


def _is_transformer_engine(layer: Any) -> bool:
    return type(layer).__module__.startswith("transformer_engine") and isinstance(
        getattr(layer, "fp8_meta", None), dict
    )
