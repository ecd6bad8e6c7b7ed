"""Mistakes that the weights, buffers and optimizers show before the first step."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from lightning_perf.callbacks.lightning_compat import Module, Trainer
from lightning_perf.callbacks.precision.fp32_layers import layer_name
from lightning_perf.run_files.numerics.precision import PrecisionMistake

HALF_TYPES = (torch.float16, torch.bfloat16)

ZERO_IN_FP16 = 2.0**-25
"""fp16 rounds numbers up to here to zero: half of its smallest one, 2⁻²⁴."""

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


def check_weights_and_optimizers(trainer: Trainer, module: Module, precision: str) -> Iterator[PrecisionMistake]:
    """Check all that is known before the first step."""
    mixed = precision in ("16-mixed", "bf16-mixed")
    if mixed:
        yield from _half_weights(module, precision)
    yield from _half_statistics(module, mixed=mixed)
    yield from _optimizer_epsilon(trainer, module)
    if trainer.accumulate_grad_batches > 1:
        yield from half_accumulation(module, int(trainer.accumulate_grad_batches))


def _half_weights(module: Module, precision: str) -> Iterator[PrecisionMistake]:
    layers: dict[str, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype in HALF_TYPES:
            owner, _, own = layer_name(name).rpartition(".")
            layers.setdefault(owner, []).append((own, parameter))
    for owner, parameters in layers.items():
        own, parameter = parameters[0]
        yield PrecisionMistake(
            "half-weights",
            "high",
            f"Weights are {_short(parameter.dtype)} under {precision}",
            (
                (
                    f"{own} of this layer is {parameter.dtype}. Autocast expects FP32 weights, so that small updates "
                    "are not rounded away."
                ),
                *(("torch's GradScaler refuses FP16 gradients.",) if parameter.dtype == torch.float16 else ()),
            ),
            f"Remove .half() or .bfloat16() from {_named(owner)}: autocast casts FP32 weights by itself.",
            layer=owner,
        )


def _half_statistics(module: Module, *, mixed: bool) -> Iterator[PrecisionMistake]:
    for name, layer in module.named_modules():
        mean = layer.running_mean if isinstance(layer, _NORMS) else None
        if not isinstance(mean, torch.Tensor) or mean.dtype not in HALF_TYPES:
            continue
        place = layer_name(name)
        yield PrecisionMistake(
            "half-batch-norm",
            "high",
            f"Running statistics of a {type(layer).__name__} are {_short(mean.dtype)}",
            (
                (
                    f"Each step changes them by {layer.momentum or 0:g} of a difference, which {_short(mean.dtype)} "
                    "rounds to a few digits. A variance above 65504 is inf in FP16."
                ),
            ),
            f"Keep the layer in FP32: remove .half() from {_named(place)}."
            if mixed
            else "Train with Trainer(precision='16-mixed') or 'bf16-mixed', which keep statistics in FP32, or call "
            f"self.{place}.float() in on_fit_start.",
            layer=place,
        )


def _optimizer_epsilon(trainer: Trainer, module: Module) -> Iterator[PrecisionMistake]:
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            epsilon = group.get("eps")
            # Fused optimizers compute in FP32 and round only the result.
            if not isinstance(epsilon, float) or not 0 < epsilon <= ZERO_IN_FP16 or group.get("fused"):
                continue
            half = [parameter for parameter in group["params"] if parameter.dtype == torch.float16]
            if not half:
                continue
            name = next((layer_name(name) for name, parameter in module.named_parameters() if parameter is half[0]), "")
            yield PrecisionMistake(
                "epsilon-underflow",
                "high",
                f"eps={epsilon:g} of {type(optimizer).__name__} is zero in FP16",
                (f"{len(half)} FP16 parameters use it, first {name}. A gradient of zero divides zero by zero: NaN.",),
                f"Give torch.optim.{type(optimizer).__name__}(…, eps=1e-4), or train in 16-mixed with FP32 weights.",
                layer=name.rpartition(".")[0],
            )
            break


def half_accumulation(module: Module, micro_batches: int) -> Iterator[PrecisionMistake]:
    """Check whether the gradients of several micro-batches are added up in 16 bits."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype in HALF_TYPES:
            owner = layer_name(name).rpartition(".")[0]
            yield PrecisionMistake(
                "half-accumulation",
                "moderate",
                f"Gradients of {micro_batches} micro-batches are added up in {_short(parameter.dtype)}",
                (
                    (
                        f"A gradient has its weight's type, {_short(parameter.dtype)}. Each addition rounds the sum to "
                        f"{'3 digits' if parameter.dtype == torch.float16 else '2 digits'}, and small gradients are "
                        f"lost."
                    ),
                ),
                "Train with Trainer(precision='bf16-mixed') or '16-mixed', which keep weights and gradients in FP32.",
                layer=owner,
            )
            return


def _short(dtype: torch.dtype) -> str:
    return {torch.float16: "FP16", torch.bfloat16: "BF16"}.get(dtype, str(dtype))


def _named(layer: str) -> str:
    return layer or "the module"
