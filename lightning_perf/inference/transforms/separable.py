"""Replace convolutions by separable ones, which filter each channel alone and then mix channels pixel by pixel."""

from __future__ import annotations

from math import prod
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.transforms.base import Transform, copy_module

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
        """Replace the convolutions of a copy."""
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
    depthwise = kind(
        inputs,
        inputs,
        layer.kernel_size,
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=inputs,
        bias=False,
        padding_mode=layer.padding_mode,
    )
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
