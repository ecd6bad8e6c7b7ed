"""Averages of the weights (EMA, SWA) that are kept in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn

from lightning_perf.callbacks.lightning_compat import Module, Trainer
from lightning_perf.callbacks.mistakes.weights import HALF_TYPES
from lightning_perf.callbacks.precision.fp32_layers import layer_name
from lightning_perf.objects import PLAIN, is_tensor, parts
from lightning_perf.run_files.numerics.precision import PrecisionMistake

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
_DEPTH = 2
_ITEMS = 100
"""Levels of attributes, lists and dicts in which tensors are looked for, and items of each."""


@dataclass(frozen=True)
class _Version:
    """A tensor's identity and version: they change when somebody writes into it or replaces it."""

    identity: int
    version: int
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Version:
        """Return the version of a tensor."""
        return cls(id(tensor), tensor._version, tensor.dtype)


class HalfAverages:
    """Finds 16-bit copies of trainable weights that change during training, without being trained.

    A copy that stays the same, e.g. of the start weights for a penalty, is no average. Neither is a new copy of
    the current weights.
    It looks at layers and buffers without gradient, and at tensors and modules in the attributes of the LightningModule
    and of the callbacks.
    """

    def __init__(self, trainer: Trainer, module: Module) -> None:
        self._trainer = trainer
        self._module = module
        self._before = {place: _Version.of(tensor) for place, tensor in self._copies()[0].items()}

    def check(self, step: int) -> Iterator[PrecisionMistake]:
        """Compare with the last look, at which a tensor must have been there already."""
        copies, weights = self._copies()
        before, self._before = self._before, {place: _Version.of(tensor) for place, tensor in copies.items()}
        changed = [
            (place, now.dtype)
            for place, now in self._before.items()
            if place in before and before[place] != now and not any(_equal(copies[place], one) for one in weights)
        ]
        if not changed:
            return
        place, dtype = changed[0]
        short = "FP16" if dtype == torch.float16 else "BF16"
        yield PrecisionMistake(
            "half-averages",
            "high",
            f"An average of the weights is kept in {short}",
            (
                (
                    f"{len(changed)} tensors with the shapes of trainable weights change in each step, first {place}. "
                    f"With a decay of 0.999, a step changes them by a thousandth of a difference, which {short} rounds "
                    f"away."
                ),
            ),
            "Keep the average in FP32, e.g. copy.deepcopy(self.net).float() or parameter.detach().float().clone().",
            layer=place,
            step=step,
        )

    def _copies(self) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
        """Return 16-bit tensors that nobody trains, with the shape of a trained weight, and all trained weights."""
        half: dict[str, torch.Tensor] = {}

        def add(place: str, tensor: torch.Tensor) -> None:
            if tensor.dtype in HALF_TYPES and not tensor.is_inference():
                half.setdefault(place, tensor)

        def add_module(place: str, layers: nn.Module) -> None:
            for name, layer in layers.named_modules():
                if isinstance(layer, _NORMS):
                    continue
                for tensor_name, tensor in (*layer._parameters.items(), *layer._buffers.items()):
                    if tensor is not None and tensor.dtype in HALF_TYPES:
                        add(".".join(part for part in (place, layer_name(name), tensor_name) if part), tensor)

        add_module("", self._module)
        for owner, prefix in [(self._module, ""), *((one, type(one).__name__) for one in self._trainer.callbacks)]:
            for name, value in list(vars(owner).items()):
                if name.startswith("_") and name in _INTERNAL:
                    continue
                _visit(".".join(part for part in (prefix, name) if part), value, add, add_module, _DEPTH)
        if not half:
            return {}, []
        stepped = [p for o in self._trainer.optimizers for group in o.param_groups for p in group["params"]]
        trained = {id(p) for p in stepped if p.requires_grad}
        weights = [p for p in self._module.parameters() if id(p) in trained and p.dim()]
        shapes = {tuple(p.shape) for p in weights}
        return {
            place: tensor
            for place, tensor in half.items()
            if id(tensor) not in trained and tuple(tensor.shape) in shapes
        }, weights


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    same_kind = (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
    return same_kind and torch.equal(one, other)


_INTERNAL = ("_parameters", "_buffers", "_modules", "_trainer", "_fabric", "_jit_module")


def _visit(place: str, value: Any, add: Any, add_module: Any, depth: int) -> None:
    kind = type(value)
    if is_tensor(value):
        add(place, value)
    elif issubclass(kind, nn.Module):
        if not hasattr(kind, "training_step"):  # a callback that keeps the LightningModule itself
            add_module(place, value)
    elif depth:
        for key, one in islice(parts(value), _ITEMS):
            if type(one) not in PLAIN:
                name = repr(key) if type(key) in PLAIN else kind.__name__
                _visit(f"{place}[{name}]", one, add, add_module, depth - 1)
