"""Make weights smaller when compressed: set the smallest ones to zero, or leave a few distinct values per layer."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import prune

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.transforms.base import Transform, copy_module, weight_layers

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


MOST_ROUNDS = 300
"""Most rounds of Lloyd's algorithm; millions of weights and 32 values converge within about a hundred."""


def cluster(values: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Find k numbers that minimise the squared distance of each value to its nearest number, approximately.

    This is Lloyd's algorithm (Lloyd 1982, doi:10.1109/TIT.1982.1056489), started from the quantiles of the values, so
    it is deterministic. In one dimension each cluster is a range of the sorted values, so a round takes k look-ups.

    Returns:
        At most k numbers in ascending order, and the index of the nearest number for each value.
    """
    ordered = np.sort(values).astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    centres = np.unique(np.quantile(ordered, (np.arange(k) + 0.5) / k))
    for _ in range(MOST_ROUNDS):
        edges = np.searchsorted(ordered, (centres[:-1] + centres[1:]) / 2, side="right")
        bounds = np.concatenate([[0], edges, [len(ordered)]])
        counts = np.diff(bounds)
        filled = counts > 0
        moved = np.diff(sums[bounds])[filled] / counts[filled]
        if np.array_equal(moved, centres):
            break
        centres = moved
    codebook = np.unique(centres.astype(np.float32))
    # Compare in single precision, so that each value gets the nearest of the stored numbers.
    middles = (codebook[:-1].astype(np.float64) + codebook[1:].astype(np.float64)) / 2
    return codebook, np.searchsorted(middles, values.astype(np.float64), side="left")


class Share(Transform):
    """Replaces each weight by the nearest of ``2**bits`` values, which k-means finds for each layer.

    It is not faster, because the kernels see ordinary weights. The weights get smaller when they are compressed
    (Han, Mao, Dally, arXiv:1510.00149, section 3). Biases and normalisation, which have one dimension, stay unchanged.

    Args:
        bits: Bits per index, from 1 to 8.
    """

    needs_training = False

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.name = f"share-{bits}bit"
        self.summary = f"k-means leaves {2**bits} distinct weights per layer: smaller when compressed, not faster"

    def change(self, module: nn.Module, subject: Subject) -> nn.Module:  # noqa: ARG002
        changed = copy_module(module)
        shared = 0
        with torch.no_grad():
            for weight in changed.parameters():
                if weight.ndim < 2 or weight.numel() <= 2**self.bits:
                    continue
                if not torch.isfinite(weight).all():
                    raise VariantError(f"{self.name}: {type(module).__name__} has NaN or infinite weights")
                codebook, indices = cluster(weight.float().flatten().numpy(), 2**self.bits)
                weight.copy_(torch.from_numpy(codebook[indices]).view_as(weight))
                shared += 1
        if not shared:
            raise VariantError(f"{self.name}: the model has no layer with more than {2**self.bits} weights")
        return changed
