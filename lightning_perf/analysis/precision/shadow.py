"""Drift of a mixed-precision training from FP32: from its shadow steps, and from replays of its first batches."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.run_files.numerics.precision import NumericsDrift, finite_or_none
from lightning_perf.run_files.numerics.samples import ShadowSample

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


class ShadowDrift(Struct, frozen=True):
    """The shadow steps of a run.

    Attributes:
        points: The series over the run.
        layers: The layers, those with the lowest cosine first.
        largest_loss_error: Largest difference of the losses, relative to the loss in FP32; None if never known.
        growth: Mean of 1 - cosine in the last quarter of the series over that of the first quarter; None with fewer
            than 8 points.
        cost_share: Share of the time of the fit that shadow steps took, 0 to 1.
        summary: The result in sentences.
    """

    points: tuple[ShadowPoint, ...]
    layers: tuple[LayerDirection, ...]
    largest_loss_error: float | None
    growth: float | None
    cost_share: float | None
    summary: tuple[str, ...]

    @property
    def drifting(self) -> tuple[LayerDirection, ...]:
        """The layers with a gradient that pointed elsewhere."""
        return tuple(
            layer for layer in self.layers if layer.lowest_cosine is not None and layer.lowest_cosine < LOW_COSINE
        )


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
    errors = [
        abs(point.loss - point.fp32_loss) / abs(point.fp32_loss)
        for point in points
        if point.loss is not None and point.fp32_loss
    ]
    last = samples[-1]
    drift = ShadowDrift(
        points=points,
        layers=tuple(layers),
        largest_loss_error=max(errors, default=None),
        growth=_growth([point.cosine for point in points if point.cosine is not None]),
        cost_share=last.cost_ns / last.elapsed_ns if last.elapsed_ns else None,
        summary=(),
    )
    return replace(drift, summary=_summary(drift))


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


def _summary(drift: ShadowDrift) -> tuple[str, ...]:
    known = [point for point in drift.points if point.cosine is not None]
    if not known:
        return ("No gradient could be compared with FP32: all of them were zero, NaN or infinite.",)
    lowest = min(known, key=lambda point: point.cosine or 0.0)
    lines = [
        f"The cosine between the gradients and those in FP32 is at least {lowest.cosine:.4f} (step {lowest.step})."
    ]
    if drift.largest_loss_error is not None:
        lines.append(f"The losses differ by at most {100 * drift.largest_loss_error:.2g} %.")
    drifting = drift.drifting
    if drifting:
        worst = drifting[0]
        more = f", and {len(drifting) - 1} more below {LOW_COSINE:g}" if len(drifting) > 1 else ""
        lines.append(
            f"{worst.name} points elsewhere: its cosine falls to {worst.lowest_cosine:.2f} at step {worst.lowest_step}"
            f"{more}."
        )
    else:
        lines.append(f"No layer falls below {LOW_COSINE:g}.")
    if drift.growth is not None and drift.growth >= GROWTH:
        lines.append(f"The drift grows: 1 - cosine is {drift.growth:.1f} times as large at the end as at the start.")
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
