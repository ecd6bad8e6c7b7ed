"""Make layers cheaper: prune whole channels, or replace convolutions by separable ones."""

from __future__ import annotations

from contextlib import ExitStack
from math import prod
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from lightning_perf.inference.errors import VariantError, missing_package, variant_errors
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.transforms.base import Transform, copy_module, weight_layers

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
        return missing_package("torch_pruning", extra="infer")

    def change(self, module: nn.Module, subject: Subject) -> nn.Module:
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
    with ExitStack() as hooks, torch.no_grad():
        for layer in weight_layers(module):
            hooks.callback(layer.register_forward_hook(lambda layer, *_: ran.append(layer)).remove)
        module(example.clone())
    return ran[-1:]


LEAST_INPUTS = 4
"""Convolutions with fewer input channels stay dense: they see the image itself, and a single filter per colour would
find edges in one direction only. MobileNet also keeps its first convolution dense (Howard et al., arXiv:1704.04861,
table 1)."""


Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


class Separable(Transform):
    """Replaces dense convolutions by depthwise and pointwise ones, and fine-tunes the model.

    A k×k convolution with n output channels then needs ``1/n + 1/k²`` of its MACs (Howard et al., arXiv:1704.04861,
    section 3.1).
    """

    name = "separable"
    summary = "k×k convolutions replaced by depthwise and pointwise ones, then fine-tuned"

    def change(self, module: nn.Module, subject: Subject) -> nn.Module:  # noqa: ARG002
        holder = nn.ModuleList([copy_module(module)])  # a list, because the model itself may be a convolution
        dense = {child: separate(child) for child in holder.modules() if _is_dense(child)}
        if not dense:
            raise VariantError(f"{self.name}: the model has no dense convolution with a kernel wider than 1 to replace")
        for parent in list(holder.modules()):
            for name, child in parent._modules.items():
                if child in dense:
                    parent._modules[name] = dense[child]
        return holder[0]


def separate(layer: Convolution) -> nn.Sequential:
    """Return the best depthwise and pointwise pair for a convolution.

    The weights of one input channel are a matrix, outputs by kernel positions. The pair replaces each such matrix by
    one of rank 1: a filter times one factor per output. The nearest matrix of rank 1 is the first term of the singular
    value decomposition (Eckart and Young 1936, doi:10.1007/BF02288367).

    Returns:
        A depthwise convolution with the layer's stride, padding and dilation, and a pointwise one with its bias.
    """
    kind: Any = type(layer)
    inputs, outputs = layer.in_channels, layer.out_channels
    options = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "padding_mode")}
    depthwise = kind(inputs, inputs, layer.kernel_size, groups=inputs, bias=False, **options)
    pointwise = kind(inputs, outputs, 1, bias=layer.bias is not None)
    filters, factors = _rank_one(layer.weight.detach())
    with torch.no_grad():
        depthwise.weight.copy_(filters.reshape(depthwise.weight.shape))
        pointwise.weight.copy_(factors.reshape(pointwise.weight.shape))
        if layer.bias is not None:
            pointwise.bias.copy_(layer.bias)
    return nn.Sequential(depthwise, pointwise)


def _rank_one(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the filters ``(in, k)`` and factors ``(out, in)`` nearest to a weight ``(out, in, …)``."""
    matrices = weight.flatten(2).transpose(0, 1)  # (in, out, k)
    left, scale, right = torch.linalg.svd(matrices, full_matrices=False)
    root = scale[:, 0].sqrt()
    return right[:, 0] * root[:, None], (left[:, :, 0] * root[:, None]).T


def _is_dense(layer: nn.Module) -> TypeGuard[Convolution]:
    if type(layer) not in (nn.Conv1d, nn.Conv2d, nn.Conv3d):  # subclasses may compute something else
        return False
    assert isinstance(layer, Convolution)
    positions = prod(layer.kernel_size)
    smaller = 1 / layer.out_channels + 1 / positions < 1
    return layer.groups == 1 and positions > 1 and layer.in_channels >= LEAST_INPUTS and smaller
