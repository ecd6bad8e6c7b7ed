"""Takes samples from the three matrices of a linear or convolution layer: activations, weight and gradient."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from msgspec import Struct
from torch import nn

COVERED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

LINES = 32
"""Fewest sampled rows or columns of a matrix: a product of two samples has 1024 results or more."""

MOST_LINES = 256

TERMS = 4096
"""Most terms of a sampled sum. Longer sums are sampled in whole blocks."""

VALUES = 2**16
"""Sampled values of a matrix with short lines, at most."""

BLOCK = 32
"""Neighbors that stay together where a sum is sampled, so that block formats see whole blocks."""


class LayerShape(NamedTuple):
    """The matrix product of a layer: `rows` × `inputs` activations times `inputs` × `outputs` weights.

    Attributes:
        sizes: The sizes that fast kernels want to be multiples of 8, 16 or 32.
    """

    rows: int
    inputs: int
    outputs: int
    sizes: dict[str, int]


class ProductSample(Struct, frozen=True):
    """Samples of the operands of one matrix product, as FP32. Of both, the last dimension runs along the sums."""

    product: Literal["forward", "input gradient", "weight gradient"]
    left_tensor: Literal["activation", "gradient"]
    left: torch.Tensor
    right_tensor: Literal["weight", "activation"]
    right: torch.Tensor


def covered_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of a model that a forecast covers, by name.

    These are linear layers and convolutions with one group, except inside compiled modules: their hooks do not run.
    """
    compiled = tuple(
        f"{name}." if name else ""
        for name, part in module.named_modules()
        if hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None
    )
    return {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, COVERED) and getattr(part, "groups", 1) == 1 and not name.startswith(compiled or ("\0",))
    }


class _Layout:
    """Addresses the elements of a layer's three matrices.

    A convolution is the matrix product over all output positions (rows). Its sums run over kernel positions and, inside
    each, over channels, as in kernels for the channels-last layout. A linear layer is one without positions.
    """

    def __init__(self, layer: Any, output: torch.Tensor) -> None:
        weight = self._weight = layer.weight
        self._is_linear = isinstance(layer, nn.Linear)
        self._unbatched = output.dim() == weight.dim() - 1
        out = self._images(output)
        self._positions, self._kernel, self._channels = tuple(out.shape[2:]), tuple(weight.shape[2:]), weight.shape[1]
        self._geometry = (
            () if self._is_linear else tuple(zip(layer.stride, _padding(layer), layer.dilation, strict=True))
        )
        rows, terms = out.shape[0] * math.prod(self._positions), self._channels * math.prod(self._kernel)
        outputs = weight.shape[0]
        sizes = {"rows": rows, "inputs": terms, "outputs": outputs}
        if not self._is_linear:
            sizes = {"input channels": self._channels, "output channels": outputs}
        self.shape = LayerShape(rows, terms, outputs, sizes)

    def activation(self, inputs: torch.Tensor, rows: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
        """Return elements of the activations; the indexes broadcast."""
        inputs = self._images(inputs)
        image, position = _split(rows, self._positions)
        _, tap = _split(terms // self._channels, self._kernel)
        inside: torch.Tensor | None = None
        places = []
        for axis, (stride, padding, dilation) in enumerate(self._geometry):
            place = position[axis] * stride - padding + tap[axis] * dilation
            valid = (place >= 0) & (place < inputs.shape[2 + axis])
            inside = valid if inside is None else inside & valid
            places.append(place.clamp(0, inputs.shape[2 + axis] - 1))
        picked = inputs[(image, terms % self._channels, *places)]
        return picked if inside is None else picked * inside

    def weight(self, outputs: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
        """Return elements of the weight."""
        _, tap = _split(terms // self._channels, self._kernel)
        picked: torch.Tensor = self._weight[(outputs, terms % self._channels, *tap)]
        return picked

    def gradient(self, gradient: torch.Tensor, rows: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        """Return elements of the gradient of the output."""
        image, position = _split(rows, self._positions)
        return self._images(gradient)[(image, outputs, *position)]

    def _images(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._is_linear:
            return tensor.reshape(-1, tensor.shape[-1])
        return tensor[None] if self._unbatched else tensor


def _padding(layer: Any) -> tuple[int, ...]:
    if layer.padding == "valid":
        return (0,) * len(layer.kernel_size)
    if layer.padding == "same":
        return tuple(d * (k - 1) // 2 for d, k in zip(layer.dilation, layer.kernel_size, strict=True))
    return tuple(layer.padding)


class MatrixSampler:
    """Samples one layer on one batch: first its activations and weight, and later the gradient of its output."""

    @torch.no_grad()
    def __init__(self, layer: Any, inputs: torch.Tensor, output: torch.Tensor, generator: torch.Generator) -> None:
        self._layout = layout = _Layout(layer, output)
        self.shape = shape = layout.shape
        terms = _blocks(shape.inputs, TERMS, generator)
        lines = max(LINES, min(MOST_LINES, VALUES // len(terms)))
        rows = _lines(shape.rows, lines, generator)
        outputs = _lines(shape.outputs, lines, generator)
        # For the gradients the sums run along the outputs and along the rows.
        self._rows, self._outputs = rows, outputs
        self._summed_rows = _blocks(shape.rows, TERMS, generator)
        self._summed_outputs = _blocks(shape.outputs, TERMS, generator)
        inputs_picked = _lines(shape.inputs, LINES, generator)
        self._activation = layout.activation(inputs, rows[:, None], terms[None])
        self._weight = layout.weight(outputs[:, None], terms[None]).detach()
        self._weight_by_input = layout.weight(self._summed_outputs[None], inputs_picked[:, None]).detach()
        self._activation_by_input = layout.activation(inputs, self._summed_rows[None], inputs_picked[:, None])
        self._gradients: tuple[torch.Tensor, torch.Tensor] | None = None

    @torch.no_grad()
    def add_gradient(self, gradient: torch.Tensor) -> None:
        """Sample the gradient of the layer's output."""
        layout, outputs = self._layout, self._outputs[:LINES]
        self._gradients = (
            layout.gradient(gradient, self._rows[:, None], self._summed_outputs[None]),
            layout.gradient(gradient, self._summed_rows[None], outputs[:, None]),
        )

    def samples(self) -> list[ProductSample]:
        """Return the samples of each product: without a gradient, only of the forward product."""
        forward = ProductSample("forward", "activation", self._activation.float(), "weight", self._weight.float())
        if self._gradients is None:
            return [forward]
        by_row, by_output = (gradient.float() for gradient in self._gradients)
        return [
            forward,
            ProductSample("input gradient", "gradient", by_row, "weight", self._weight_by_input.float()),
            ProductSample("weight gradient", "gradient", by_output, "activation", self._activation_by_input.float()),
        ]


def _lines(size: int, most: int, generator: torch.Generator) -> torch.Tensor:
    if size <= most:
        return torch.arange(size, device=generator.device)
    return torch.randperm(size, generator=generator, device=generator.device)[:most]


def _blocks(size: int, most: int, generator: torch.Generator) -> torch.Tensor:
    """Choose whole blocks of neighbors, in order; all of them where there are few."""
    if size <= most:
        return torch.arange(size, device=generator.device)
    chosen = torch.randperm(size // BLOCK, generator=generator, device=generator.device)[: most // BLOCK]
    starts = chosen.sort().values * BLOCK
    return (starts[:, None] + torch.arange(BLOCK, device=generator.device)[None]).flatten()


def _split(index: torch.Tensor, sizes: tuple[int, ...]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Split a flat index into the leading index and one index per size, the last one the fastest."""
    parts = []
    for size in reversed(sizes):
        parts.append(index % size)
        index = index // size
    return index, parts[::-1]
