"""Counts how formats round a layer's tensors, and measures the error of its three matrix products."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from lightning_perf.callbacks.forecast.formats import FORMATS, round_values
from lightning_perf.callbacks.forecast.matrices import MatrixSamples
from lightning_perf.callbacks.host_copy import copy_scalars
from lightning_perf.run_files.numerics.samples import RoundedCounts, TensorSample

COARSE_ERROR = 0.125
"""From this relative error on, a rounded value counts as coarse. Values in the normal range of E4M3 change by at most
5.9 %, those of E5M2 by at most 11.1 %, and those of E2M1 by at most 20 %."""

TENSORS = ("weight", "activation", "gradient")

PRODUCTS = ("forward", "input gradient", "weight gradient")

RECIPES: dict[str, tuple[str, str]] = {
    "fp16": ("fp16", "fp16"),
    "bf16": ("bf16", "bf16"),
    "fp8": ("e4m3", "e5m2"),
    "fp8-delayed": ("e4m3-delayed", "e5m2-delayed"),
    "e4m3": ("e4m3", "e4m3"),
    "e4m3-delayed": ("e4m3-delayed", "e4m3-delayed"),
    "e5m2": ("e5m2", "e5m2"),
    "e5m2-delayed": ("e5m2-delayed", "e5m2-delayed"),
    "mxfp8": ("mxfp8", "mxfp8"),
    "nvfp4": ("nvfp4", "nvfp4"),
}
"""The format of weights and activations, and that of gradients, by recipe. ``fp8`` is the usual mixture of E4M3 and
E5M2 (torchao's default, and Transformer Engine's ``HYBRID``)."""

MOST_DB = 200.0
"""Bound of a signal-to-noise ratio, which is infinite without any error."""

_Largest = dict[str, torch.Tensor]


@dataclass(frozen=True)
class RoundedFigures:
    """The figures of one layer.

    Attributes:
        gradient_scale: Loss scale that the counts of ``fp16`` assume for gradients.
        products: Signal-to-noise ratios in dB, by product and recipe.
    """

    gradient_scale: float
    tensors: dict[str, TensorSample]
    products: dict[str, dict[str, float | None]]


class RoundedLayer:
    """Rounds the samples of a layer to every format. The results stay on the device until `read`."""

    @torch.no_grad()
    def __init__(
        self, samples: MatrixSamples, largest: _Largest, earlier_largest: _Largest, gradient_scale: torch.Tensor
    ) -> None:
        self._largest = largest
        self._earlier = earlier_largest
        self._scale = gradient_scale
        self._sizes: list[int] = []
        figures: list[torch.Tensor] = [gradient_scale]
        activation = self._rounded(samples.activation, "activation")
        weight = self._rounded(samples.weight, "weight")
        figures += self._counts(samples.weight, weight, "weight")
        figures += self._counts(samples.activation, activation, "activation")
        products = [(samples.activation, samples.weight, activation, weight, False)]
        if (
            samples.gradient is not None
            and samples.weight_by_input is not None
            and samples.gradient_by_output is not None
            and samples.activation_by_input is not None
        ):
            gradient = self._rounded(samples.gradient, "gradient")
            figures += self._counts(samples.gradient, gradient, "gradient")
            weight = self._rounded(samples.weight_by_input, "weight")
            products.append((samples.gradient, samples.weight_by_input, gradient, weight, True))
            gradient = self._rounded(samples.gradient_by_output, "gradient")
            activation = self._rounded(samples.activation_by_input, "activation")
            products.append((samples.gradient_by_output, samples.activation_by_input, gradient, activation, True))
        for left, right, rounded_left, rounded_right, of_gradient in products:
            exact = left @ right.T
            figures.append(exact.square().sum())
            for values, gradients in RECIPES.values():
                product = rounded_left[gradients if of_gradient else values][0] @ rounded_right[values][0].T
                figures.append((product - exact).square().sum())
        self._number_of_products = len(products)
        self._figures = copy_scalars(figures)

    @property
    def arrived(self) -> bool:
        """Whether the results are on the host."""
        return self._figures.arrived

    def read(self) -> RoundedFigures:
        """Return the figures. Waits until they have arrived."""
        figures = iter(self._figures.read().tolist())
        gradient_scale = next(figures)
        tensors = {}
        for name, size in zip(TENSORS, self._sizes, strict=False):
            zeros, largest = int(next(figures)), next(figures)
            counts = {
                each: RoundedCounts(int(next(figures)), int(next(figures)), int(next(figures))) for each in FORMATS
            }
            tensors[name] = TensorSample(size, zeros, largest, counts)
        products = {}
        for name in PRODUCTS[: self._number_of_products]:
            signal = next(figures)
            products[name] = {recipe: _decibels(signal, next(figures)) for recipe in RECIPES}
        return RoundedFigures(gradient_scale, tensors, products)

    def _rounded(self, values: torch.Tensor, tensor: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        rounded = {}
        for each in FORMATS:
            # The scale is a power of two, so only the limits of FP16 move.
            scale = self._scale if each == "fp16" and tensor == "gradient" else None
            result = round_values(
                values if scale is None else values * scale,
                each,
                largest=self._largest[tensor],
                earlier_largest=self._earlier[tensor],
            )
            rounded[each] = (result.values if scale is None else result.values / scale, result.saturated)
        return rounded

    def _counts(
        self, values: torch.Tensor, rounded: dict[str, tuple[torch.Tensor, torch.Tensor]], tensor: str
    ) -> list[torch.Tensor]:
        self._sizes.append(values.numel())
        magnitude = values.abs()
        figures = [(values == 0).sum(), self._largest[tensor]]
        for each in FORMATS:
            result, saturated = rounded[each]
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
