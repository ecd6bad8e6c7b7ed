"""Mistakes that weights, buffers, averages and optimizers show: before the first step, and by their changes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from lightning_perf.callbacks.lightning_compat import Module, Trainer, holds_whole_model
from lightning_perf.callbacks.mistakes.found import FoundMistakes
from lightning_perf.callbacks.precision.fp32_layers import layer_name
from lightning_perf.objects import PLAIN, is_tensor, parts
from lightning_perf.units import format_share

SHORT = {torch.float16: "FP16", torch.bfloat16: "BF16"}
"""The types of 16 bits, with their names."""

ZERO_IN_FP16 = 2.0**-25
"""fp16 rounds numbers up to here to zero: half of its smallest one, 2⁻²⁴."""

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)

_DEPTH = 2
_ITEMS = 100
"""Levels of attributes, lists and dicts in which averages are looked for, and items of each."""

_INTERNAL = ("_parameters", "_buffers", "_modules", "_trainer", "_fabric", "_jit_module")

SAMPLED = 16_384
"""Weights that are looked at for lost updates, drawn from all of them."""

MIN_STEPS = 10
MIN_LOST, MOST_LOST = 0.25, 0.5
"""Optimizer steps, and the least share of weights that none of them changed, to report it; and that for *high*."""


def check_weights_and_optimizers(found: FoundMistakes, trainer: Trainer, module: Module, precision: str) -> None:
    """Check all that is known before the first step."""
    mixed = precision in ("16-mixed", "bf16-mixed")
    if mixed:
        _check_half_weights(found, module, precision)
    _check_statistics(found, module, mixed=mixed)
    for optimizer in trainer.optimizers:
        _check_epsilon(found, optimizer)
    if trainer.accumulate_grad_batches > 1:
        check_accumulation(found, module, int(trainer.accumulate_grad_batches))


def _check_half_weights(found: FoundMistakes, module: Module, precision: str) -> None:
    layers: set[str] = set()
    for name, parameter in _half_parameters(module):
        owner, _, own = name.rpartition(".")
        if owner in layers:
            continue
        layers.add(owner)
        refused = ("torch's GradScaler refuses FP16 gradients.",) if parameter.dtype == torch.float16 else ()
        found.report(
            "half-weights",
            f"Weights are {SHORT[parameter.dtype]} under {precision}",
            f"Remove .half() or .bfloat16() from {owner or 'the module'}: autocast casts FP32 weights by itself.",
            f"{own} of this layer is {parameter.dtype}. Autocast expects FP32 weights, so that small updates "
            "are not rounded away.",
            *refused,
            layer=owner,
            step=0,
        )


def _check_statistics(found: FoundMistakes, module: Module, *, mixed: bool) -> None:
    for name, layer in module.named_modules():
        mean = layer.running_mean if isinstance(layer, _NORMS) else None
        if not isinstance(mean, torch.Tensor) or mean.dtype not in SHORT:
            continue
        place, short = layer_name(name), SHORT[mean.dtype]
        found.report(
            "half-batch-norm",
            f"Running statistics of a {type(layer).__name__} are {short}",
            f"Keep the layer in FP32: remove .half() from {place or 'the module'}."
            if mixed
            else "Train with Trainer(precision='16-mixed') or 'bf16-mixed', which keep statistics in FP32, or call "
            f"self.{place}.float() in on_fit_start.",
            f"Each step changes them by {layer.momentum or 0:g} of a difference, which {short} "
            "rounds to a few digits. A variance above 65504 is inf in FP16.",
            layer=place,
            step=0,
        )


def _check_epsilon(found: FoundMistakes, optimizer: Any) -> None:
    for group in optimizer.param_groups:
        epsilon = group.get("eps")
        # Fused optimizers compute in FP32 and round only the result.
        if not isinstance(epsilon, float) or not 0 < epsilon <= ZERO_IN_FP16 or group.get("fused"):
            continue
        half = [parameter for parameter in group["params"] if parameter.dtype == torch.float16]
        if not half:
            continue
        found.report(
            "epsilon-underflow",
            f"eps={epsilon:g} of {type(optimizer).__name__} is zero in FP16",
            f"Give torch.optim.{type(optimizer).__name__}(…, eps=1e-4), or train in 16-mixed with FP32 weights.",
            f"{len(half)} FP16 parameters use it, first {found.parameters.get(id(half[0]), '')}. A gradient of zero "
            "divides zero by zero: NaN.",
            layer=found.layer_of(half[0]),
            step=0,
        )
        return


def check_accumulation(found: FoundMistakes, module: Module, micro_batches: int) -> None:
    """Check whether the gradients of several micro-batches are added up in 16 bits."""
    name, parameter = next(_half_parameters(module), ("", None))
    if parameter is not None:
        short = SHORT[parameter.dtype]
        found.report(
            "half-accumulation",
            f"Gradients of {micro_batches} micro-batches are added up in {short}",
            "Train with Trainer(precision='bf16-mixed') or '16-mixed', which keep weights and gradients in FP32.",
            f"A gradient has its weight's type, {short}. Each addition rounds the sum to "
            f"{'3' if short == 'FP16' else '2'} digits, and small gradients are lost.",
            layer=name.rpartition(".")[0],
            step=0,
        )


def _half_parameters(module: Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the names and the parameters that are trained in 16 bits."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype in SHORT:
            yield layer_name(name), parameter


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
        self._before = {place: _version(tensor) for place, tensor in self._copies()[0].items()}

    def check(self, found: FoundMistakes) -> None:
        """Compare with the last look, at which a tensor must have been there already."""
        copies, weights = self._copies()
        before, self._before = self._before, {place: _version(tensor) for place, tensor in copies.items()}
        changed = [
            place
            for place, version in self._before.items()
            if before.get(place, version) != version and not any(_equal(copies[place], one) for one in weights)
        ]
        if not changed:
            return
        short = SHORT[copies[changed[0]].dtype]
        found.report(
            "half-averages",
            f"An average of the weights is kept in {short}",
            "Keep the average in FP32, e.g. copy.deepcopy(self.net).float() or parameter.detach().float().clone().",
            f"{len(changed)} tensors with the shapes of trainable weights change in each step, first {changed[0]}. "
            f"With a decay of 0.999, a step changes them by a thousandth of a difference, which {short} rounds away.",
            layer=changed[0],
        )

    def _copies(self) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
        """Return 16-bit tensors that nobody trains, with the shape of a trained weight, and all trained weights."""
        half: dict[str, torch.Tensor] = {}
        places = [("", self._module)]
        for owner, prefix in [(self._module, ""), *((one, type(one).__name__) for one in self._trainer.callbacks)]:
            for name, value in list(vars(owner).items()):
                if name not in _INTERNAL:
                    places += _found_in(_path(prefix, name), value, _DEPTH)
        for place, value in places:
            for name, tensor in _tensors(value) if isinstance(value, nn.Module) else [("", value)]:
                if tensor.dtype in SHORT and not tensor.is_inference():
                    half.setdefault(_path(place, name), tensor)
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


def _version(tensor: torch.Tensor) -> tuple[int, int, torch.dtype]:
    """Return the identity of a tensor, which changes when somebody writes into it or replaces it."""
    return id(tensor), tensor._version, tensor.dtype


def _path(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    same_kind = (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
    return same_kind and torch.equal(one, other)


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers of a module with their names, except those of norms."""
    for name, layer in module.named_modules():
        if not isinstance(layer, _NORMS):
            for own, tensor in (*layer._parameters.items(), *layer._buffers.items()):
                if tensor is not None:
                    yield _path(layer_name(name), own), tensor


def _found_in(place: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and modules in a value, with their places."""
    kind = type(value)
    if is_tensor(value) or issubclass(kind, nn.Module):
        if not hasattr(kind, "training_step"):  # a callback that keeps the LightningModule itself
            yield place, value
    elif depth:
        for key, one in islice(parts(value), _ITEMS):
            if type(one) not in PLAIN:
                name = repr(key) if type(key) in PLAIN else kind.__name__
                yield from _found_in(f"{place}[{name}]", one, depth - 1)


class LostUpdates:
    """Compares some of the 16-bit weights at the start and at the end of a training.

    A weight in BF16 has 8 bits: an update by less than 0.2 % of it is rounded away. Weights without a gradient in the
    last step are left out, since nobody may have updated them.
    """

    def __init__(self, trainer: Trainer, module: Module) -> None:
        self._trainer = trainer
        self._from_step = int(trainer.global_step)
        # A weight that is sharded or quantized, or has no shape yet, does not have all its values.
        trained = [p for _, p in _half_parameters(module) if type(p.data) is torch.Tensor and not is_lazy(p)]
        self._samples = list(_drawn(trained)) if trained and holds_whole_model(trainer) else []

    @torch.no_grad()
    def check(self, found: FoundMistakes) -> None:
        """Compare with the start of training."""
        samples, self._samples = self._samples, []
        steps = int(self._trainer.global_step) - self._from_step
        if steps < MIN_STEPS:
            return
        updated = kept = 0
        for parameter, places, values in samples:
            gradient = parameter.grad
            if gradient is None or gradient.is_sparse:
                continue
            has_gradient = gradient.reshape(-1)[places] != 0
            updated += int(has_gradient.sum())
            kept += int((has_gradient & (parameter.reshape(-1)[places] == values)).sum())
        if not updated:
            return
        from lightning_perf.statistics.collapse import clopper_pearson

        share = clopper_pearson(kept, updated)
        low, high = share.low or 0.0, share.high or 1.0
        if low < MIN_LOST:
            return
        short = SHORT[samples[0][0].dtype]
        found.report(
            "lost-updates",
            f"Updates are lost: {steps:,} steps left {format_share(share.value)} of the {short} weights unchanged",
            "Keep the weights in FP32: Trainer(precision='bf16-mixed'). If memory is short, use an optimizer with "
            "stochastic rounding, e.g. torchao.optim.AdamW8bit(…, bf16_stochastic_round=True).",
            f"Of {updated:,} sampled weights, {kept:,} are as before: {format_share(low)} to {format_share(high)}.",
            f"An update is added in {short}, which rounds it away if it is below half of the weight's last digit.",
            moderate=low < MOST_LOST,
        )


@torch.no_grad()
def _drawn(parameters: list[nn.Parameter]) -> Iterator[tuple[nn.Parameter, torch.Tensor, torch.Tensor]]:
    """Draw weights with equal chances, without touching the random numbers of the training.

    Yields:
        Parameters with the places of the drawn values, and these values.
    """
    ends = torch.tensor([p.numel() for p in parameters]).cumsum(0)
    total, random = int(ends[-1]), torch.Generator().manual_seed(0)
    drawn = torch.arange(total) if total <= SAMPLED else torch.randint(total, (SAMPLED,), generator=random)
    owner = torch.searchsorted(ends, drawn, right=True)
    for number in sorted(set(owner.tolist())):
        parameter = parameters[number]
        places = (drawn[owner == number] - (ends[number] - parameter.numel())).to(parameter.device)
        yield parameter, places, parameter.reshape(-1)[places]
