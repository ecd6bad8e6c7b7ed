"""Detects whether runs became slower or faster in the order in which they ran, whatever their setting."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from lightning_perf.statistics.distributions import t_cdf, t_quantile
from lightning_perf.statistics.values import Estimate, Numbers


class Drift(Struct, frozen=True):
    """Change over the order of runs, each arm's mean removed.

    Attributes:
        change: Time of the last run over that of the first by a straight line through the logarithms, minus 1.
        p: p-value of no change, or None.
        residuals: Each run's time over its arm's geometric mean, minus 1, in the order of the runs; None for a run
            without a number.
    """

    change: Estimate
    p: float | None
    residuals: tuple[float | None, ...]


def measure_drift(
    values: Numbers,
    arms: Sequence[str],
    blocks: Sequence[int] | None = None,
    confidence: float = 0.95,
) -> Drift:
    """Fit one line over run order to the logarithms of all runs, with a separate mean for each arm.

    Args:
        values: One positive value per run, in the order in which the runs ran.
        blocks: The block of each. The runs of a block share more than their place in the order, so the line is then
            fitted to the blocks' means. Counted as separate runs, they would claim drift in one study out of eight.
    """
    method = "least squares on logarithms"
    usable = [row for row, v in enumerate(values) if v is not None and math.isfinite(v) and v > 0]
    logs = np.array([math.log(values[row] or 1.0) for row in usable])
    order = np.array(usable, dtype=np.float64)
    labels = [arms[row] for row in usable]
    for arm in set(labels):
        rows = np.array([label == arm for label in labels])
        logs[rows] -= logs[rows].mean()
        order[rows] -= order[rows].mean()
    residuals: list[float | None] = [None] * len(values)
    for row, log in zip(usable, logs, strict=True):
        residuals[row] = math.expm1(float(log))
    if blocks is None:
        df = len(usable) - len(set(labels)) - 1
    else:
        _, group, sizes = np.unique([blocks[row] for row in usable], return_inverse=True, return_counts=True)
        logs, order = (np.bincount(group, values) / sizes for values in (logs, order))
        df = len(sizes) - 2
    weight = float((order**2).sum())
    if df < 1 or weight == 0:
        reason = "too few runs to tell a drift"
        return Drift(Estimate(None, None, None, confidence, len(usable), method, reason), None, tuple(residuals))
    slope = float((order * logs).sum()) / weight
    left = float(((logs - slope * order) ** 2).sum())
    error = math.sqrt(left / df / weight)
    span = len(values) - 1
    if error * span < 1e-12:
        reason = "the runs of each arm are equal: no spread to judge by"
        change = Estimate(math.expm1(slope * span), None, None, confidence, len(usable), method, reason)
        return Drift(change, None, tuple(residuals))
    reach = t_quantile(0.5 + confidence / 2, df) * error
    change = Estimate(slope, slope - reach, slope + reach, confidence, len(usable), method).map(
        lambda value: math.expm1(value * span)
    )
    return Drift(change, 2 * (1 - t_cdf(abs(slope) / error, df)), tuple(residuals))
