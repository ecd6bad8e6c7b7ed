"""Updates of 16-bit weights that are too small to change them, and are lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn.parameter import is_lazy

from lightning_perf.callbacks.lightning_compat import Module, Trainer, holds_whole_model
from lightning_perf.callbacks.mistakes.weights import HALF_TYPES
from lightning_perf.run_files.numerics.precision import PrecisionMistake
from lightning_perf.units import format_share

SAMPLED = 16_384
"""Weights that are looked at, drawn from all of them."""

MIN_STEPS = 10
MIN_LOST, MOST_LOST = 0.25, 0.5
"""Optimizer steps, and the least share of weights that none of them changed, to report it; and that for *high*."""


@dataclass(frozen=True)
class _Sample:
    parameter: torch.Tensor
    places: torch.Tensor
    values: torch.Tensor


class LostUpdates:
    """Compares some of the 16-bit weights at the start and at the end of a training.

    A weight in BF16 has 8 bits: an update by less than 0.2 % of it is rounded away. Weights without a gradient in the
    last step are left out, since nobody may have updated them.
    """

    def __init__(self, trainer: Trainer, module: Module) -> None:
        self._trainer = trainer
        self._from_step = int(trainer.global_step)
        trained = [p for p in module.parameters() if p.requires_grad and p.dtype in HALF_TYPES and _is_plain(p)]
        self._samples = _drawn(trained) if trained and holds_whole_model(trainer) else []

    @torch.no_grad()
    def check(self, step: int) -> Iterator[PrecisionMistake]:
        """Compare with the start of training."""
        samples, self._samples = self._samples, []
        steps = int(self._trainer.global_step) - self._from_step
        if steps < MIN_STEPS:
            return
        updated = kept = 0
        for one in samples:
            gradient = one.parameter.grad
            if gradient is None or gradient.is_sparse:
                continue
            has_gradient = gradient.reshape(-1)[one.places] != 0
            updated += int(has_gradient.sum())
            kept += int((has_gradient & (one.parameter.reshape(-1)[one.places] == one.values)).sum())
        if not updated:
            return
        from lightning_perf.statistics.collapse import clopper_pearson

        share = clopper_pearson(kept, updated)
        low, high = share.low or 0.0, share.high or 1.0
        if low < MIN_LOST:
            return
        short = "FP16" if samples[0].parameter.dtype == torch.float16 else "BF16"
        yield PrecisionMistake(
            "lost-updates",
            "high" if low >= MOST_LOST else "moderate",
            f"Updates are lost: {steps:,} steps left {format_share(share.value)} of the {short} weights unchanged",
            (
                f"Of {updated:,} sampled weights, {kept:,} are as before: {format_share(low)} to {format_share(high)}.",
                f"An update is added in {short}, which rounds it away if it is below half of the weight's last digit.",
            ),
            "Keep the weights in FP32: Trainer(precision='bf16-mixed'). If memory is short, use an optimizer with "
            "stochastic rounding, e.g. torchao.optim.AdamW8bit(…, bf16_stochastic_round=True).",
            step=step,
        )


def _is_plain(parameter: torch.Tensor) -> bool:
    """Return whether a weight has all its values: it is neither sharded nor quantized nor still without a shape."""
    return type(parameter.data) is torch.Tensor and not is_lazy(parameter)


@torch.no_grad()
def _drawn(parameters: list[torch.Tensor]) -> list[_Sample]:
    """Draw weights with equal chances, without touching the random numbers of the training."""
    ends = torch.tensor([p.numel() for p in parameters]).cumsum(0)
    total, random = int(ends[-1]), torch.Generator().manual_seed(0)
    drawn = torch.arange(total) if total <= SAMPLED else torch.randint(total, (SAMPLED,), generator=random)
    owner = torch.searchsorted(ends, drawn, right=True)
    samples = []
    for number in sorted(set(owner.tolist())):
        parameter = parameters[number]
        places = (drawn[owner == number] - (ends[number] - parameter.numel())).to(parameter.device)
        samples.append(_Sample(parameter, places, parameter.reshape(-1)[places]))
    return samples
