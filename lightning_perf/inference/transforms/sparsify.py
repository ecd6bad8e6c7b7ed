"""Unstructured pruning: single weights become zero, wherever they are."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import prune

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.subject import Subject
from lightning_perf.inference.transform import FineTune
from lightning_perf.inference.transforms.copies import check_outputs, copy_module, require_training, weight_layers

__all__ = ["Sparsify"]

HARMLESS_PERCENT = 50
"""Up to here a trained network usually keeps its accuracy without training (Han et al., arXiv:1506.02626, fig. 5)."""


class Sparsify:
    """Sets the smallest weights of all layers together to zero.

    It is no faster: dense kernels multiply by zero as by any other number. What it gains is size, once stored packed
    or compressed (`measure_storage`).

    Args:
        percent: Share of the weights to set to zero, from 1 to 99. Above 50 the rest is fine-tuned.
    """

    def __init__(self, percent: int) -> None:
        self.percent = percent
        self.name = f"sparsify-{percent}"
        self.needs_training = percent > HARMLESS_PERCENT
        after = ", then fine-tuned" if self.needs_training else ""
        self.summary = f"{percent} % of the weights set to zero{after}: smaller when compressed, no faster"

    def missing(self) -> str | None:
        """Nothing can be missing."""
        return None

    def apply(self, module: nn.Module, subject: Subject, fine_tune: FineTune | None) -> nn.Module:
        """Set weights of a copy to zero; fine-tuning leaves them zero."""
        changed = copy_module(module)
        layers = weight_layers(changed)
        if not layers:
            raise VariantError(f"{self.name} finds no linear layers and no convolutions in {type(module).__name__}")
        prune.global_unstructured(
            [(layer, "weight") for layer in layers], pruning_method=prune.L1Unstructured, amount=self.percent / 100
        )
        if self.needs_training:
            changed = require_training(self.name, fine_tune)(changed, None)
        for layer in weight_layers(changed):
            if prune.is_pruned(layer):
                # Else the model could not be copied or exported.
                prune.remove(layer, "weight")  # type: ignore[no-untyped-call]
                with torch.no_grad():
                    layer.weight.add_(0.0)  # -0.0, which is not all bits zero, becomes 0.0
        return check_outputs(self.name, changed, subject)
