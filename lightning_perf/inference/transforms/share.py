"""Weight sharing: the weights of a layer take only a few values, stored once."""

from __future__ import annotations

import torch
from torch import nn

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.subject import Subject
from lightning_perf.inference.transform import FineTune
from lightning_perf.inference.transforms.copies import check_outputs, copy_module
from lightning_perf.inference.transforms.kmeans import cluster

__all__ = ["Share"]


class Share:
    """Replaces each weight by the nearest of ``2**bits`` values, which k-means finds for each layer.

    It is no faster: the kernels see ordinary weights. What it gains is size, stored as codebooks and indices
    (`lightning_perf.inference.storage.pack_weights`; Han, Mao, Dally, arXiv:1510.00149, section 3). Biases and
    normalisation, which have one dimension, stay as they are.

    Args:
        bits: Bits of an index, from 1 to 8.
    """

    needs_training = False

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.name = f"share-{bits}bit"
        self.summary = f"weights of {2**bits} values a layer by k-means: smaller when packed, no faster"

    def missing(self) -> str | None:
        """Nothing can be missing."""
        return None

    def apply(self, module: nn.Module, subject: Subject, fine_tune: FineTune | None) -> nn.Module:  # noqa: ARG002
        """Share the weights of a copy."""
        changed = copy_module(module)
        shared = 0
        with torch.no_grad():
            for weight in changed.parameters():
                if weight.ndim < 2 or weight.numel() <= 2**self.bits:
                    continue
                if not torch.isfinite(weight).all():
                    raise VariantError(f"{self.name}: weights of {type(module).__name__} are not finite")
                codebook, indices = cluster(weight.float().flatten().numpy(), 2**self.bits)
                weight.copy_(torch.from_numpy(codebook[indices]).view_as(weight))
                shared += 1
        if not shared:
            raise VariantError(f"{self.name} finds no layer with more than {2**self.bits} weights")
        return check_outputs(self.name, changed, subject)
