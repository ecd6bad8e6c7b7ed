"""``fp8.rank0.jsonl``: the scales of an FP8 training, and how its layers round their tensors, on sampled steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lightning_perf.run_files.jsonl import RankLog

__all__ = ["FP8", "Fp8Sample", "Fp8Tensor"]


@dataclass(frozen=True)
class Fp8Tensor:
    """One tensor of an FP8 layer.

    Attributes:
        format: ``e4m3`` or ``e5m2``.
        largest: Largest magnitude: of the tensor, or the newest one in the library's history.
        history_largest: Largest magnitude in the library's history; ``null`` without a history (current scaling).
        scale: Factor before the cast. With a scale per row, the smallest one.
        values: Sampled values other than zero; ``null`` if the library exposes only scales.
        flushed: Those that become zero.
        saturated: Those beyond the largest value of the format.
    """

    format: Literal["e4m3", "e5m2"]
    largest: float
    history_largest: float | None
    scale: float
    values: int | None = None
    flushed: int | None = None
    saturated: int | None = None


@dataclass(frozen=True)
class Fp8Sample:
    """One FP8 layer on one step.

    Attributes:
        step: Number of the step, on the axis of the Trainer's own logs.
        layer: Name of the layer.
        library: The library that the layer comes from.
        tensors: Its tensors: ``activation``, ``weight`` and ``gradient`` (of the layer's output).
    """

    step: int
    layer: str
    library: Literal["torchao", "transformer-engine"]
    tensors: dict[str, Fp8Tensor]


FP8: RankLog[Fp8Sample] = RankLog(Fp8Sample, "fp8", "FP8 sample", restart=b'{"step"')
