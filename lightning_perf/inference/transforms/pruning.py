"""Prune whole channels, or single weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from lightning_perf.inference.errors import VariantError, missing_package, variant_errors
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.transforms.base import Transform, copy_module

WeightLayer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
"""Layers with weights to prune."""


def weight_layers(module: nn.Module) -> list[WeightLayer]:
    """Return the linear layers and convolutions, in the order of ``modules()``."""
    return [layer for layer in module.modules() if isinstance(layer, WeightLayer)]


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

    def __init__(self, percent: int) -> None:
        self.percent = percent
        self.name = f"prune-{percent}"
        self.summary = f"{percent} % of the channels removed, then fine-tuned"

    def missing(self) -> str | None:
        """Return that torch-pruning is missing, or None."""
        return missing_package("torch_pruning", extra="infer")

    def change(self, module: nn.Module, subject: Subject) -> nn.Module:
        """Prune a copy."""
        changed, example = copy_module(module), subject.inputs[:1]
        before = sum(parameter.numel() for parameter in changed.parameters())
        import torch_pruning as tp

        # torch-pruning finds the dependencies in the graph of a backward pass.
        with variant_errors("torch-pruning cannot follow this model"), torch.enable_grad():
            tp.pruner.BasePruner(
                changed,
                example,
                importance=tp.importance.GroupMagnitudeImportance(p=2),
                pruning_ratio=self.percent / 100,
                ignored_layers=_output_layers(changed, example),
                round_to=ROUND_TO,
            ).step()
        changed.zero_grad(set_to_none=True)
        if sum(parameter.numel() for parameter in changed.parameters()) == before:
            raise VariantError(
                f"{self.name} removes nothing: no layer has enough channels, because their number stays a multiple of "
                f"{ROUND_TO}"
            )
        return changed


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

    def change(self, module: nn.Module, subject: Subject) -> nn.Module:  # noqa: ARG002
        """Set weights of a copy to zero; training keeps them at zero."""
        changed = copy_module(module)
        layers = weight_layers(changed)
        if not layers:
            raise VariantError(f"{self.name}: {type(module).__name__} has no linear layers and no convolutions")
        prune.global_unstructured(
            [(layer, "weight") for layer in layers], pruning_method=prune.L1Unstructured, amount=self.percent / 100
        )
        return changed

    def finish(self, module: nn.Module) -> nn.Module:
        """Keep the weights only: with the masks, the model could not be copied or exported."""
        for layer in weight_layers(module):
            if prune.is_pruned(layer):
                prune.remove(layer, "weight")  # type: ignore[no-untyped-call]
                with torch.no_grad():
                    layer.weight.add_(0.0)  # turns -0.0, which does not compress like 0.0, into 0.0
        return module
