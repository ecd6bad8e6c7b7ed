"""``underflow.rank0.jsonl``: the gradients of sampled steps, counted by magnitude."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lightning_perf.run_files.jsonl import RankLog

__all__ = ["GRADIENT_SAMPLES", "LOWEST_EXPONENT", "Arithmetic", "GradientSample", "LayerGradients"]

LOWEST_EXPONENT = -40
"""Gradients below this power of two are counted with it."""

Arithmetic = Literal["fp16", "fp32", "unknown"]


@dataclass(frozen=True)
class LayerGradients:
    """Gradient values of a layer's parameters in one sample, counted by magnitude. Scaled, as fp16 sees them.

    Attributes:
        arithmetic: Type that the layer's parameters were cast to for computing; unknown inside compiled code and
            reentrant checkpoints.
        zeros: Values that are exactly zero.
        nonfinite: Values that are inf or nan.
        first_exponent: Power of two of the first count.
        counts: Values from 2ᵉ to 2ᵉ⁺¹ in magnitude, by ascending e.
    """

    arithmetic: Arithmetic
    zeros: int
    nonfinite: int
    first_exponent: int
    counts: tuple[int, ...]


@dataclass(frozen=True)
class GradientSample:
    """The gradients of one training step, sampled.

    Attributes:
        step: Number of the step, on the axis of the Trainer's own logs.
        scale: The loss scale.
        layers: The gradients of each layer, by name, in the order of the module.
        hidden: For layers with zeros only: their gradients at a much larger scale, counted as if at this one. Non-zero
            values had underflowed. Without them, no gradient reaches the layer.
    """

    step: int
    scale: float
    layers: dict[str, LayerGradients]
    hidden: dict[str, LayerGradients]


GRADIENT_SAMPLES: RankLog[GradientSample] = RankLog(GradientSample, "underflow", "gradient sample", restart=b'{"step"')
