"""The layers of an FP8 training over its sampled steps: scales, saturation and underflow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_perf.run_files.numerics.samples import Fp8Sample, Fp8Tensor

FLUSHED_LIMIT = 0.10
"""A tensor underflows from this share of flushed values on, as in the table of gradient underflow."""

LIMITS = {"e4m3": 448.0, "e5m2": 57344.0}


@dataclass(frozen=True)
class Fp8TensorRow:
    """One tensor of an FP8 layer over the run.

    Attributes:
        layer: The layer.
        tensor: ``activation``, ``weight`` or ``gradient``.
        format: ``e4m3`` or ``e5m2``.
        samples: Sampled steps.
        smallest_largest: Smallest of the largest magnitudes of each step.
        largest: Largest magnitude of all steps.
        scale: Factor before the cast on the last sample.
        flushed: Largest share of non-zero values that became zero on a step, 0 to 1; None if only scales are exposed.
        saturated: Largest share beyond the format on a step, 0 to 1; None if only scales are exposed.
        saturated_steps: Steps with a magnitude beyond the largest value that the scale allows.
    """

    layer: str
    tensor: str
    format: str
    samples: int
    smallest_largest: float
    largest: float
    scale: float
    flushed: float | None
    saturated: float | None
    saturated_steps: int

    @property
    def troubled(self) -> bool:
        """Whether the tensor saturates, or underflows in more than `FLUSHED_LIMIT` of its values."""
        return self.saturated_steps > 0 or (self.flushed is not None and self.flushed > FLUSHED_LIMIT)


@dataclass(frozen=True)
class Fp8Layers:
    """The FP8 layers of a run.

    Attributes:
        library: The library that the layers come from.
        samples: Sampled steps.
        rows: The tensors, those that saturate or underflow most first.
        summary: The result in a sentence.
    """

    library: str
    samples: int
    rows: tuple[Fp8TensorRow, ...]
    summary: str


def summarize_fp8(samples: Sequence[Fp8Sample]) -> Fp8Layers | None:
    """Summarize the samples of FP8 layers."""
    if not samples:
        return None
    found: dict[tuple[str, str], list[Fp8Tensor]] = {}
    for sample in samples:
        for name, tensor in sample.tensors.items():
            found.setdefault((sample.layer, name), []).append(tensor)
    rows = sorted(
        (_row(layer, name, tensors) for (layer, name), tensors in found.items()),
        key=lambda row: (-row.saturated_steps, -(row.flushed or 0.0)),
    )
    layers = len({sample.layer for sample in samples})
    troubled = len({row.layer for row in rows if row.troubled})
    harm = f"saturate, or flush more than {100 * FLUSHED_LIMIT:.0f} % of a tensor's values"
    text = f"{troubled or 'None'} of {layers} FP8 layers {harm}."
    return Fp8Layers(samples[-1].library, len({sample.step for sample in samples}), tuple(rows), text)


def _row(layer: str, name: str, tensors: Sequence[Fp8Tensor]) -> Fp8TensorRow:
    flushed = [each.flushed / each.values for each in tensors if each.values and each.flushed is not None]
    saturated = [each.saturated / each.values for each in tensors if each.values and each.saturated is not None]
    return Fp8TensorRow(
        layer=layer,
        tensor=name,
        format=tensors[-1].format,
        samples=len(tensors),
        smallest_largest=min(each.largest for each in tensors),
        largest=max(each.largest for each in tensors),
        scale=tensors[-1].scale,
        flushed=max(flushed, default=None),
        saturated=max(saturated, default=None),
        saturated_steps=sum(_saturates(each) for each in tensors),
    )


def _saturates(tensor: Fp8Tensor) -> bool:
    if tensor.saturated is not None:
        return tensor.saturated > 0
    # A rounding error of the scale alone is no saturation.
    return tensor.largest * tensor.scale > LIMITS[tensor.format] * (1 + 1e-5)
