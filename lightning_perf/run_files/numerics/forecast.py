"""``forecast.rank0.jsonl``: how number formats would round the tensors of each layer, on sampled batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lightning_perf.run_files.jsonl import RankLog

__all__ = ["FORECAST", "LayerSample", "RoundedCounts", "TensorSample"]


@dataclass(frozen=True)
class RoundedCounts:
    """How a format rounds the sampled values of one tensor.

    Attributes:
        flushed: Values other than zero that become zero.
        saturated: Values beyond the largest value of the format. FP8 and FP4 clamp them, FP16 and BF16 make them inf.
        coarse: Other values that change by more than an eighth.
    """

    flushed: int
    saturated: int
    coarse: int


@dataclass(frozen=True)
class TensorSample:
    """The sampled values of one tensor of a layer.

    Attributes:
        values: Sampled values.
        zeros: Those that are exactly zero.
        largest: Largest magnitude in the whole tensor.
        formats: Counts by format, e.g. ``e4m3``.
    """

    values: int
    zeros: int
    largest: float
    formats: dict[str, RoundedCounts]


@dataclass(frozen=True)
class LayerSample:
    """One layer on one sampled batch.

    Attributes:
        step: Number of the step, on the axis of the Trainer's own logs.
        layer: Name of the layer.
        kind: ``linear`` or ``convolution``.
        rows: Rows of the layer's matrix product: tokens or samples, or output positions of a convolution.
        inputs: Length of the product's sums: input features, or input channels times the size of the kernel.
        outputs: Output features or channels.
        sizes: The sizes that fast kernels want to be multiples of 8, 16 or 32, by name.
        gradient_scale: Loss scale that the counts of ``fp16`` assume for gradients.
        tensors: The sampled tensors: ``weight``, ``activation``, and ``gradient`` (of the layer's output).
        products: Signal-to-noise ratio in dB, by product (``forward``, ``input gradient``, ``weight gradient``) and
            recipe. ``null`` if the exact product is zero.
        cost_ns: Cost of the forecast so far.
        elapsed_ns: Time since the start of training.
    """

    step: int
    layer: str
    kind: Literal["linear", "convolution"]
    rows: int
    inputs: int
    outputs: int
    sizes: dict[str, int]
    gradient_scale: float
    tensors: dict[str, TensorSample]
    products: dict[str, dict[str, float | None]]
    cost_ns: int
    elapsed_ns: int


FORECAST: RankLog[LayerSample] = RankLog(LayerSample, "forecast", "layer sample", restart=b'{"step"')
