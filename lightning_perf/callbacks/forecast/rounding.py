"""Counts how formats round a layer's tensors, and measures the error of its three matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from lightning_perf.callbacks.forecast.formats import FORMATS, Rounded, round_values
from lightning_perf.callbacks.forecast.matrices import ProductSample
from lightning_perf.callbacks.host_copy import copy_scalars
from lightning_perf.run_files.numerics.samples import RoundedCounts, TensorSample

COARSE_ERROR = 0.125
"""From this relative error on, a rounded value counts as coarse. Values in the normal range of E4M3 change by at most
5.9 %, those of E5M2 by at most 11.1 %, and those of E2M1 by at most 20 %."""

RECIPES: dict[str, tuple[str, str]] = {
    "fp16": ("fp16", "fp16"),
    "bf16": ("bf16", "bf16"),
    "fp8": ("e4m3", "e5m2"),
    "fp8-delayed": ("e4m3-delayed", "e5m2-delayed"),
    "e5m2": ("e5m2", "e5m2"),
    "mxfp8": ("mxfp8", "mxfp8"),
    "nvfp4": ("nvfp4", "nvfp4"),
}
"""The format of weights and activations, and that of gradients, by recipe. ``fp8`` is the usual mixture of E4M3 and
E5M2 (torchao's default, and Transformer Engine's ``HYBRID``)."""

MOST_DB = 200.0
"""Bound of a signal-to-noise ratio, which is infinite without any error."""

_Largest = dict[str, torch.Tensor]


class RoundedLayer:
    """Rounds the samples of a layer to every format. The results stay on the device until `read`."""

    @torch.no_grad()
    def __init__(
        self,
        samples: Sequence[ProductSample],
        largest: _Largest,
        earlier_largest: _Largest,
        gradient_scale: torch.Tensor,
    ) -> None:
        self._largest = largest
        self._earlier = earlier_largest
        self._scale = gradient_scale
        self._products = [sample.product for sample in samples]
        self._sizes: dict[str, int] = {}
        counts: list[torch.Tensor] = []
        errors: list[torch.Tensor] = []
        for sample in samples:
            right = self._rounded(sample.right, sample.right_tensor)
            left = self._rounded(sample.left, sample.left_tensor)
            counts += self._counts(sample.right, right, sample.right_tensor)
            counts += self._counts(sample.left, left, sample.left_tensor)
            exact = sample.left @ sample.right.T
            errors.append(exact.square().sum())
            for values, gradients in RECIPES.values():
                product = (
                    left[gradients if sample.left_tensor == "gradient" else values].values @ right[values].values.T
                )
                errors.append((product - exact).square().sum())
        self._figures = copy_scalars([gradient_scale, *counts, *errors])

    @property
    def arrived(self) -> bool:
        """Whether the results are on the host."""
        return self._figures.arrived

    def read(self) -> tuple[float, dict[str, TensorSample], dict[str, dict[str, float | None]]]:
        """Return the figures. Waits until they have arrived.

        Returns:
            The loss scale that the counts of ``fp16`` assume for gradients, the counts of each tensor, and
            signal-to-noise ratios in dB, by product and recipe.
        """
        figures = iter(self._figures.read().tolist())
        gradient_scale = next(figures)
        tensors = {}
        for name, size in self._sizes.items():
            zeros, largest = int(next(figures)), next(figures)
            counts = {
                each: RoundedCounts(int(next(figures)), int(next(figures)), int(next(figures))) for each in FORMATS
            }
            tensors[name] = TensorSample(size, zeros, largest, counts)
        products: dict[str, dict[str, float | None]] = {}
        for name in self._products:
            signal = next(figures)
            products[name] = {recipe: _decibels(signal, next(figures)) for recipe in RECIPES}
        return gradient_scale, tensors, products

    def _rounded(self, values: torch.Tensor, tensor: str) -> dict[str, Rounded]:
        scales = {"largest": self._largest[tensor], "earlier_largest": self._earlier[tensor]}
        scaled = ("fp16",) if tensor == "gradient" else ()
        rounded = {each: round_values(values, each, **scales) for each in FORMATS if each not in scaled}
        for each in scaled:  # the loss scale is a power of two, so only the limits of FP16 move
            result = round_values(values * self._scale, each, **scales)
            rounded[each] = Rounded(result.values / self._scale, result.saturated)
        return rounded

    def _counts(self, values: torch.Tensor, rounded: dict[str, Rounded], tensor: str) -> list[torch.Tensor]:
        """Count how the formats round a tensor, in the first sample of it."""
        if tensor in self._sizes:
            return []
        self._sizes[tensor] = values.numel()
        magnitude = values.abs()
        figures = [(values == 0).sum(), self._largest[tensor]]
        for each in FORMATS:
            result, saturated = rounded[each].values, rounded[each].saturated
            flushed = (result == 0) & (values != 0)
            coarse = ((result - values).abs() > COARSE_ERROR * magnitude) & ~flushed & ~saturated
            figures += [flushed.sum(), saturated.sum(), coarse.sum()]
        return figures


def _decibels(signal: float, noise: float) -> float | None:
    if not signal > 0:
        return None
    if noise == 0:
        return MOST_DB
    if not math.isfinite(noise):
        return -MOST_DB
    return round(max(-MOST_DB, min(MOST_DB, 10 * math.log10(signal / noise))), 2)
