"""Precision over a run: the loss scale, gradients that underflow, FP8 layers, and drift from FP32."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.run_files.numerics.precision import (
    LayerUnderflow,
    LossScaleHistory,
    NumericsDrift,
    PrecisionAdvice,
    UnderflowTable,
    finite_or_none,
)
from lightning_perf.run_files.numerics.samples import (
    Fp8Sample,
    Fp8Tensor,
    GradientSample,
    LayerGradients,
    ScaleEvent,
    ShadowSample,
)
from lightning_perf.trace.columns import Int64Array


class ScalerState(Struct, frozen=True):
    """The state of a gradient scaler, kept on the host so that reading it does not wait for the device.

    Attributes:
        scale: The loss scale.
        steps_since_change: Steps executed since the scale last grew or shrank (torch's growth tracker).
        growth_factor: The factor of the scale after `growth_interval` executed steps in a row.
        backoff_factor: The factor of the scale after an overflow.
        growth_interval: Executed steps in a row after which the scale grows.
    """

    scale: float
    steps_since_change: int
    growth_factor: float
    backoff_factor: float
    growth_interval: int

    def after(self, *, overflow: bool) -> ScalerState:
        """Return the state after one more optimizer step was tried, which an overflow in the gradients skips.

        The rule is that of ``torch._amp_update_scale_`` (``aten/src/ATen/native/cuda/AmpKernels.cu``): the product is
        rounded to FP32, and a growth that would overflow FP32 is left out.
        """
        if overflow:
            return replace(self, scale=_round_to_fp32(self.scale * self.backoff_factor), steps_since_change=0)
        steps = self.steps_since_change + 1
        if steps < self.growth_interval:
            return replace(self, steps_since_change=steps)
        grown = _round_to_fp32(self.scale * self.growth_factor)
        return replace(self, scale=grown if np.isfinite(grown) else self.scale, steps_since_change=0)


def summarize_loss_scale(events: Sequence[ScaleEvent]) -> LossScaleHistory:
    """Summarize the events of one rank, in order, the start first."""
    if not events:
        raise ValueError("no loss-scale events: the run did not start")
    overflows = [event for event in events if event.kind == "overflow"]
    last = events[-1]
    return LossScaleHistory(
        attempts=last.attempts,
        skipped_steps=len(overflows),
        scheduler_steps_on_skips=sum(event.scheduler_steps for event in overflows),
        trained_ns=last.trained_ns,
        wasted_ns=sum(event.wasted_ns for event in overflows),
        finished=last.kind == "end",
        events=tuple(events),
    )


def _round_to_fp32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


FP16_SMALLEST_NORMAL_EXPONENT = -14
"""Below 2⁻¹⁴ an fp16 value has fewer than 11 significant bits (IEEE 754-2019, binary16)."""

FP16_LARGEST_EXPONENT = 15
"""The largest fp16 value is 65504, just below 2¹⁶."""

UNDERFLOW_LIMIT = 0.10
"""Share of a layer's gradient values that may be subnormal before the layer is named.

A subnormal value keeps some of its bits. With a tenth of the values at reduced precision, no harm is visible. Networks
trained well in Micikevicius et al., Mixed Precision Training (2018), figure 3, with about 5 % of subnormal values.
"""

SCALE_LIMIT = 2.0**24
"""A higher initial scale is not recommended: in most runs torch would back off from it for many steps."""

FEW_LAYERS = 0.25
"""Up to this share of the layers, keeping the affected ones in FP32 costs less than leaving fp16."""


def tabulate_underflow(samples: Sequence[GradientSample]) -> UnderflowTable:
    """Add up samples into a table, and recommend a change.

    Each sample counts at its own scale. Samples of overflowing steps are left out if there are others, because their
    scale was too high.
    """
    if not samples:
        raise ValueError("no gradient samples: the run ended before its first sampled step")
    sound = [sample for sample in samples if not any(layer.nonfinite for layer in sample.layers.values())]
    kept = sound or list(samples)
    names = list(dict.fromkeys(name for sample in kept for name in sample.layers))
    rows = tuple(_underflow_row(name, kept) for name in names)
    headroom = min(
        (row.headroom_doublings for row in rows if row.headroom_doublings is not None and row.arithmetic != "fp32"),
        default=None,
    )
    scale = kept[-1].scale
    return UnderflowTable(len(kept), scale, headroom, rows, _advise(rows, scale, headroom))


def _underflow_row(name: str, samples: Sequence[GradientSample]) -> LayerUnderflow:
    seen = [sample.layers[name] for sample in samples if name in sample.layers]
    first, counts = _add_counts(seen)
    zeros, nonzero = sum(layer.zeros for layer in seen), int(counts.sum())
    values = zeros + nonzero + sum(layer.nonfinite for layer in seen)
    vanished = None
    tried = [sample.hidden[name] for sample in samples if name in sample.hidden]
    if tried and not nonzero:
        first, counts = _add_counts(tried)
        nonzero = int(counts.sum())
        vanished = nonzero > 0
    subnormal = _subnormal_share(first, counts)
    arithmetic = seen[-1].arithmetic
    return LayerUnderflow(
        name=name,
        arithmetic=arithmetic,
        values=values,
        zero_share=zeros / values if values else 0.0,
        subnormal_share=subnormal,
        vanished=vanished,
        median_exponent=first + int(np.searchsorted(counts.cumsum(), nonzero / 2)) if nonzero else None,
        headroom_doublings=FP16_LARGEST_EXPONENT - (first + int(np.flatnonzero(counts)[-1])) if nonzero else None,
        underflows=arithmetic != "fp32" and subnormal > UNDERFLOW_LIMIT,
        first_exponent=first,
        counts=tuple(counts.tolist()),
    )


def _add_counts(layers: Sequence[LayerGradients]) -> tuple[int, Int64Array]:
    first = min(layer.first_exponent for layer in layers)
    last = max(layer.first_exponent + len(layer.counts) for layer in layers)
    counts = np.zeros(last - first, dtype=np.int64)
    for layer in layers:
        offset = layer.first_exponent - first
        counts[offset : offset + len(layer.counts)] += np.array(layer.counts, dtype=np.int64)
    return first, counts


def _subnormal_share(first_exponent: int, counts: Int64Array) -> float:
    nonzero = int(counts.sum())
    below = max(FP16_SMALLEST_NORMAL_EXPONENT - first_exponent, 0)
    return int(counts[:below].sum()) / nonzero if nonzero else 0.0


def _advise(rows: Sequence[LayerUnderflow], scale: float, headroom: int | None) -> PrecisionAdvice | None:
    """Return the smallest change that fixes it: a larger initial scale, a few layers in FP32, or bf16."""
    concerned = [row for row in rows if row.underflows]
    if not concerned:
        return None
    doublings = max(map(_doublings_needed, concerned))
    if doublings <= (headroom or 0) and scale * 2.0**doublings <= SCALE_LIMIT:
        wanted = scale * 2.0**doublings
        return PrecisionAdvice(
            "init_scale",
            f'Start with a larger loss scale that fits all sampled gradients: PrecisionCallback("16-mixed", '
            f"init_scale={wanted:g})",
            init_scale=wanted,
        )
    computed = [row for row in rows if row.arithmetic != "fp32"]
    names = tuple(row.name for row in concerned)
    if len(concerned) <= max(1, math.floor(FEW_LAYERS * len(computed))):
        listed = ", ".join(repr(name) for name in names)
        return PrecisionAdvice(
            "keep_fp32", f"Keep {'this layer' if len(names) == 1 else 'these layers'} in FP32: keep_fp32=[{listed}]",
            keep_fp32=names,
        )  # fmt: skip
    return PrecisionAdvice(
        "bf16",
        f"Use bf16-mixed, which has the exponents of FP32: {len(concerned)} of {len(computed)} layers underflow, and "
        "no single loss scale fits all gradients",
    )


def _doublings_needed(row: LayerUnderflow) -> int:
    """Return how often the scale must double until the layer's gradients fit."""
    counts = np.array(row.counts, dtype=np.int64)
    doublings = 0
    while _subnormal_share(row.first_exponent + doublings, counts) > UNDERFLOW_LIMIT:
        doublings += 1
    return doublings


FLUSHED_LIMIT = 0.10
"""A tensor underflows from this share of flushed values on, as in the table of gradient underflow."""

LIMITS = {"e4m3": 448.0, "e5m2": 57344.0}


class Fp8TensorRow(Struct, frozen=True):
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


class Fp8Layers(Struct, frozen=True):
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
        (_fp8_row(layer, name, tensors) for (layer, name), tensors in found.items()),
        key=lambda row: (-row.saturated_steps, -(row.flushed or 0.0)),
    )
    layers = len({sample.layer for sample in samples})
    troubled = len({row.layer for row in rows if row.troubled})
    harm = f"saturate, or flush more than {100 * FLUSHED_LIMIT:.0f} % of a tensor's values"
    text = f"{troubled or 'None'} of {layers} FP8 layers {harm}."
    return Fp8Layers(samples[-1].library, len({sample.step for sample in samples}), tuple(rows), text)


def _fp8_row(layer: str, name: str, tensors: Sequence[Fp8Tensor]) -> Fp8TensorRow:
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


LOW_COSINE = 0.9
"""Below this cosine a gradient points elsewhere: the angle to the gradient in FP32 is more than 26 degrees."""

GROWTH = 2.0
"""The drift grows if the mean of 1 - cosine in the last quarter is at least this many times that of the first."""


class ShadowPoint(Struct, frozen=True):
    """One shadow step of the series.

    Attributes:
        step: Number of the step.
        loss: The run's loss on the batch.
        fp32_loss: The loss in FP32.
        cosine: Cosine between the gradient of all parameters and the one in FP32.
        norm_ratio: Norm of that gradient over the norm in FP32.
    """

    step: int
    loss: float | None
    fp32_loss: float | None
    cosine: float | None
    norm_ratio: float | None


class LayerDirection(Struct, frozen=True):
    """The gradients of one layer over all shadow steps.

    Attributes:
        name: The layer.
        lowest_cosine: Lowest cosine; None if it was never known.
        lowest_step: The step with that cosine.
        mean_cosine: Mean cosine.
        lowest_norm_ratio: Lowest norm over the norm in FP32.
        highest_norm_ratio: Highest norm over the norm in FP32.
        unknown: Shadow steps on which a gradient was zero, NaN or infinite.
    """

    name: str
    lowest_cosine: float | None
    lowest_step: int | None
    mean_cosine: float | None
    lowest_norm_ratio: float | None
    highest_norm_ratio: float | None
    unknown: int

    @property
    def drifts(self) -> bool:
        """Whether its gradient pointed elsewhere on a step."""
        return self.lowest_cosine is not None and self.lowest_cosine < LOW_COSINE


class ShadowDrift(Struct, frozen=True):
    """The shadow steps of a run.

    Attributes:
        points: The series over the run.
        layers: The layers, those with the lowest cosine first.
        cost_share: Share of the time of the fit that shadow steps took, 0 to 1.
        summary: The result in sentences.
    """

    points: tuple[ShadowPoint, ...]
    layers: tuple[LayerDirection, ...]
    cost_share: float | None
    summary: tuple[str, ...]

    @property
    def drifting(self) -> tuple[LayerDirection, ...]:
        """The layers with a gradient that pointed elsewhere."""
        return tuple(layer for layer in self.layers if layer.drifts)


def summarize_shadow(samples: Sequence[ShadowSample]) -> ShadowDrift | None:
    """Summarize the shadow steps of a run. Return None without samples."""
    if not samples:
        return None
    points = tuple(
        ShadowPoint(each.step, each.loss, each.fp32_loss, each.whole.cosine, each.whole.norm_ratio) for each in samples
    )
    names = list(dict.fromkeys(name for sample in samples for name in sample.layers))
    layers = sorted(
        (_layer(name, samples) for name in names),
        key=lambda layer: 2.0 if layer.lowest_cosine is None else layer.lowest_cosine,
    )
    last = samples[-1]
    cost_share = last.cost_ns / last.elapsed_ns if last.elapsed_ns else None
    return ShadowDrift(points, tuple(layers), cost_share, _summary(points, [each for each in layers if each.drifts]))


def _layer(name: str, samples: Sequence[ShadowSample]) -> LayerDirection:
    seen = [(sample.step, sample.layers[name]) for sample in samples if name in sample.layers]
    cosines = [(each.cosine, step) for step, each in seen if each.cosine is not None]
    ratios = [each.norm_ratio for _, each in seen if each.norm_ratio is not None]
    lowest, step = min(cosines, default=(None, None))
    return LayerDirection(
        name=name,
        lowest_cosine=lowest,
        lowest_step=step,
        mean_cosine=sum(cosine for cosine, _ in cosines) / len(cosines) if cosines else None,
        lowest_norm_ratio=min(ratios, default=None),
        highest_norm_ratio=max(ratios, default=None),
        unknown=len(seen) - len(cosines),
    )


def _growth(cosines: Sequence[float]) -> float | None:
    quarter = len(cosines) // 4
    if quarter < 2:
        return None
    first = sum(1 - cosine for cosine in cosines[:quarter])
    last = sum(1 - cosine for cosine in cosines[-quarter:])
    return last / first if first > 0 else None


def _summary(points: Sequence[ShadowPoint], drifting: Sequence[LayerDirection]) -> tuple[str, ...]:
    known = [point for point in points if point.cosine is not None]
    if not known:
        return ("No gradient could be compared with FP32: all of them were zero, NaN or infinite.",)
    lowest = min(known, key=lambda point: point.cosine or 0.0)
    lines = [
        f"The cosine between the gradients and those in FP32 is at least {lowest.cosine:.4f} (step {lowest.step})."
    ]
    losses = [(point.loss, point.fp32_loss) for point in points if point.loss is not None and point.fp32_loss]
    if losses:
        error = max(abs(own - fp32) / abs(fp32) for own, fp32 in losses)
        lines.append(f"The losses differ by at most {100 * error:.2g} %.")
    if drifting:
        worst = drifting[0]
        more = f", and {len(drifting) - 1} more below {LOW_COSINE:g}" if len(drifting) > 1 else ""
        lines.append(
            f"{worst.name} points elsewhere: its cosine falls to {worst.lowest_cosine:.2f} at step {worst.lowest_step}"
            f"{more}."
        )
    else:
        lines.append(f"No layer falls below {LOW_COSINE:g}.")
    growth = _growth([point.cosine for point in known if point.cosine is not None])
    if growth is not None and growth >= GROWTH:
        lines.append(f"The drift grows: 1 - cosine is {growth:.1f} times as large at the end as at the start.")
    return tuple(lines)


OTHER_SEEDS = 4
"""FP32 replays with another order of batches and other random numbers, in addition to the one with the run's own."""

_T_QUANTILE = 2.776
"""Student's t for 97.5 % and `OTHER_SEEDS` degrees of freedom (any table, or ``scipy.stats.t.ppf(0.975, 4)``)."""


def judge_drift(
    *,
    precision: str,
    mixed_losses: Sequence[float],
    fp32_losses: Sequence[float],
    mixed_end: float,
    fp32_end: float,
    seed_ends: Sequence[float],
) -> NumericsDrift:
    """Compare the final loss of a mixed run with those of FP32 runs.

    The range is a prediction interval for one more run like the FP32 ones, mean ± t·s·√(1 + 1/n). A mixed run that does
    no harm is outside of it in one case of twenty.
    """
    if len(seed_ends) != OTHER_SEEDS:
        raise ValueError(f"{len(seed_ends)} other seeds given, but {OTHER_SEEDS} are needed")
    ends = [fp32_end, *seed_ends]
    middle = statistics.fmean(ends)
    reach = _T_QUANTILE * statistics.stdev(ends) * math.sqrt(1 + 1 / len(ends)) if math.isfinite(middle) else math.nan
    return NumericsDrift(
        precision=precision,
        mixed_losses=tuple(map(finite_or_none, mixed_losses)),
        fp32_losses=tuple(map(finite_or_none, fp32_losses)),
        mixed_end=finite_or_none(mixed_end),
        fp32_end=finite_or_none(fp32_end),
        seed_ends=tuple(map(finite_or_none, seed_ends)),
        expected_low=finite_or_none(middle - reach),
        expected_high=finite_or_none(middle + reach),
        # A mixed loss of nan is beyond any noise, unless FP32 diverges as well.
        beyond_seed_noise=math.isfinite(middle) and not (middle - reach <= mixed_end <= middle + reach),
    )
