"""How far mixed precision takes a run away from FP32, and whether that is further than another seed takes it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from lightning_perf.run_files.numerics.precision import LayerDrift, NumericsDrift, finite_or_none

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
    layers: Sequence[LayerDrift],
) -> NumericsDrift:
    """Compare the final loss of a mixed run with those of FP32 runs.

    The range is a prediction interval for one more run like the FP32 ones, mean ± t·s·√(1 + 1/n). A mixed run that does
    no harm is outside of it in one case of twenty.

    Raises:
        ValueError: There are not exactly `OTHER_SEEDS` other seeds.

    Example:
        >>> kept = dict(precision="16-mixed", mixed_losses=[2.3], fp32_losses=[2.3], layers=[])
        >>> ends = dict(fp32_end=2.01, seed_ends=[2.0, 2.02, 1.99, 2.03])
        >>> judge_drift(**kept, **ends, mixed_end=2.04).beyond_seed_noise
        False
        >>> judge_drift(**kept, **ends, mixed_end=2.2).beyond_seed_noise
        True
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
        layers=tuple(layers),
    )
