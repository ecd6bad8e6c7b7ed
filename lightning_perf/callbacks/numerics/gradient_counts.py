"""Counting gradient values by magnitude, for all layers at once and with one copy to the host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from lightning_perf.analysis.gradient_samples import LOWEST_EXPONENT, Arithmetic, LayerGradients

__all__ = ["CountedGradients"]

VALUES_A_PARAMETER = 16_384
"""Values looked at in each parameter, evenly spread: enough to know a share to within half a percent."""

# FP32 as IEEE 754 lays it out: 23 bits of mantissa, then 8 of exponent with a bias of 127.
_MANTISSA_BITS = 23
_EXPONENT_BIAS = 127
_EXPONENTS = 256
_ZERO, _NONFINITE = 0, 255


class CountedGradients:
    """Counts of gradient values, known on the device now and on the host some time later.

    On other devices than CUDA's to read them is to wait for the device.

    Args:
        gradients: Gradients, each with the number of its layer; all on one device.
        layers: How many layers there are.
    """

    @torch.no_grad()
    def __init__(self, gradients: Sequence[tuple[int, torch.Tensor]], layers: int) -> None:
        picked = [_pick(gradient) for _, gradient in gradients]
        device = picked[0].device
        layout = tuple((layer, len(values)) for (layer, _), values in zip(gradients, picked, strict=True))
        values = torch.cat([values.float() for values in picked])
        # The exponent's own bits are the bin: no logarithm, no comparison.
        bins = values.view(torch.int32).bitwise_right_shift_(_MANTISSA_BITS).bitwise_and_(_EXPONENTS - 1)
        bins += _first_bins(layout, device)
        counts = torch.zeros(layers * _EXPONENTS, dtype=torch.int32, device=device)
        counts.index_add_(0, bins, torch.ones_like(bins))
        self._event: Any = None
        if device.type == "cuda":
            self._counts = torch.empty_like(counts, device="cpu", pin_memory=True).copy_(counts, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))
        else:
            self._counts = counts

    @property
    def arrived(self) -> bool:
        """Whether the counts are on the host."""
        return self._event is None or bool(self._event.query())

    def read(self, arithmetic: Sequence[Arithmetic]) -> list[LayerGradients]:
        """Read the counts, waiting for them if they have not arrived.

        Args:
            arithmetic: Each layer's arithmetic.
        """
        if self._event is not None:
            self._event.synchronize()
        rows = self._counts.reshape(-1, _EXPONENTS).tolist()
        return [_layer(row, kind) for row, kind in zip(rows, arithmetic, strict=True)]


def _pick(gradient: torch.Tensor) -> torch.Tensor:
    """At most `VALUES_A_PARAMETER` values, evenly spread, without copying more than those where memory allows."""
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    if gradient.dim() == 4 and gradient.is_contiguous(memory_format=torch.channels_last):
        gradient = gradient.permute(0, 2, 3, 1)
    flat = gradient.detach().reshape(-1)
    return flat[:: -(-len(flat) // VALUES_A_PARAMETER) or 1]


@lru_cache(maxsize=4)
def _first_bins(layout: tuple[tuple[int, int], ...], device: torch.device) -> torch.Tensor:
    """The first bin of each value's layer. Kept, since it is the same for every sample of a run."""
    layers = torch.tensor([layer for layer, _ in layout], dtype=torch.int32)
    sizes = torch.tensor([size for _, size in layout])
    bins = torch.repeat_interleave(layers * _EXPONENTS, sizes)
    # From pageable memory the copy would wait for the device.
    return bins.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else bins.to(device)


def _layer(row: list[int], arithmetic: Arithmetic) -> LayerGradients:
    # FP32's own subnormals, below 2⁻¹²⁶, count as zeros.
    zeros, nonfinite = row[_ZERO], row[_NONFINITE]
    lowest = LOWEST_EXPONENT + _EXPONENT_BIAS
    normal = [sum(row[1 : lowest + 1]), *row[lowest + 1 : _NONFINITE]]
    present = [position for position, count in enumerate(normal) if count]
    first, last = (present[0], present[-1] + 1) if present else (0, 0)
    return LayerGradients(arithmetic, zeros, nonfinite, LOWEST_EXPONENT + first, tuple(normal[first:last]))
