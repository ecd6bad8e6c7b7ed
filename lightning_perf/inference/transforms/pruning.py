"""Prune whole channels, or single weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from lightning_perf.inference.errors import VariantError, missing_package, variant_errors
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.transforms.base import (
    FineTune,
    Transform,
    check_outputs,
    copy_module,
    require_training,
    weight_layers,
)

ROUND_TO = 8
"""Numbers of channels stay multiples of this, because vector units and Tensor Cores are fastest with them."""


class Prune(Transform):
    """Removes channels with a small norm and fine-tunes the rest of the model.

    Channels that depend on each other through residual additions and concatenations are removed together. Their
    importance is the mean L2 norm of the group's weights (DepGraph in torch-pruning: Fang et al., arXiv:2301.12900).
    The classifier keeps its outputs.

    Args:
        percent: Share of each layer's channels to remove, from 1 to 95. MACs shrink roughly with the square of the
            remaining share.
    """

    needs_training = True

    def __init__(self, percent: int) -> None:
        self.percent = percent
        self.name = f"prune-{percent}"
        self.summary = f"{percent} % of the channels removed, then fine-tuned"

    def missing(self) -> str | None:
        """Return that torch-pruning is missing, or None."""
        return missing_package("torch_pruning", extra="infer")

    def apply(self, module: nn.Module, subject: Subject, fine_tune: FineTune | None) -> nn.Module:
        """Prune a copy and fine-tune it."""
        train = require_training(self.name, fine_tune)
        changed = copy_module(module)
        before = _parameters(changed)
        self._prune(changed, subject.inputs[:1])
        if _parameters(changed) == before:
            raise VariantError(
                f"{self.name} removes nothing: no layer has enough channels, because their number stays a multiple of "
                f"{ROUND_TO}"
            )
        check_outputs(self.name, changed, subject)
        return check_outputs(self.name, train(changed, None), subject)

    def _prune(self, module: nn.Module, example: Tensor) -> None:
        import torch_pruning as tp

        # torch-pruning finds the dependencies in the graph of a backward pass.
        with variant_errors("torch-pruning cannot follow this model"), torch.enable_grad():
            tp.pruner.BasePruner(
                module,
                example,
                importance=tp.importance.GroupMagnitudeImportance(p=2),
                pruning_ratio=self.percent / 100,
                ignored_layers=_output_layers(module, example),
                round_to=ROUND_TO,
            ).step()
        module.zero_grad(set_to_none=True)


def _output_layers(module: nn.Module, example: Tensor) -> list[nn.Module]:
    """Return the last layer with weights in the forward pass: its channels are the model's outputs."""
    ran: list[nn.Module] = []
    handles = [layer.register_forward_hook(lambda layer, *_: ran.append(layer)) for layer in weight_layers(module)]
    try:
        with torch.no_grad():
            module(example.clone())
    finally:
        for handle in handles:
            handle.remove()
    return ran[-1:]


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


HARMLESS_PERCENT = 50
"""Up to this share, a trained network usually keeps its accuracy without fine-tuning (Han et al., arXiv:1506.02626,
fig. 5)."""


class Sparsify(Transform):
    """Sets the smallest weights, over all layers together, to zero.

    It is not faster, because dense kernels still multiply by the zeros. The weights get smaller when compressed
    (`measure_storage`).
    """

    def __init__(self, percent: int) -> None:
        self.percent = percent
        self.name = f"sparsify-{percent}"
        self.needs_training = percent > HARMLESS_PERCENT
        after = ", then fine-tuned" if self.needs_training else ""
        self.summary = f"{percent} % of the weights set to zero{after}: smaller when compressed, not faster"

    def apply(self, module: nn.Module, subject: Subject, fine_tune: FineTune | None) -> nn.Module:
        """Set weights of a copy to zero; fine-tuning keeps them at zero."""
        changed = copy_module(module)
        layers = weight_layers(changed)
        if not layers:
            raise VariantError(f"{self.name}: {type(module).__name__} has no linear layers and no convolutions")
        prune.global_unstructured(
            [(layer, "weight") for layer in layers], pruning_method=prune.L1Unstructured, amount=self.percent / 100
        )
        if self.needs_training:
            changed = require_training(self.name, fine_tune)(changed, None)
        for layer in weight_layers(changed):
            if prune.is_pruned(layer):
                # Without this, the model could not be copied or exported.
                prune.remove(layer, "weight")  # type: ignore[no-untyped-call]
                with torch.no_grad():
                    layer.weight.add_(0.0)  # turns -0.0, which does not compress like 0.0, into 0.0
        return check_outputs(self.name, changed, subject)
