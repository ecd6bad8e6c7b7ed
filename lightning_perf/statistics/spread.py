"""Compares the scatter of two arms by their standard deviations, and detects drift over the order of runs."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct

from lightning_perf.statistics.values import (
    Estimate,
    Float64Array,
    Numbers,
    f_quantile,
    finite,
    finite_pairs,
    scipy_stats,
    t_cdf,
    t_quantile,
)

POWER = 0.8
MAX_RUNS = 200
SIMULATIONS = 2000


class Spread(Struct, frozen=True):
    """The ratio of two arms' standard deviations, and the power of the comparison.

    Attributes:
        ratio: SD of the candidate over SD of the baseline; the interval assumes normally distributed runs.
        p: p-value of the Brown–Forsythe test, or None.
        power: Share of studies of this size in which that test would find a ratio as large as the observed one.
        runs_needed: Runs per arm with which it would find it in 80 % of the studies; None beyond 200.
        reason: The reason for missing figures.
    """

    ratio: Estimate
    p: float | None
    power: float | None
    runs_needed: int | None
    reason: str | None = None


def compare_spread(base: Numbers, candidate: Numbers, *, paired: bool, confidence: float = 0.95) -> Spread:
    """Compare the scatter of two arms."""
    ratio = sd_ratio(base, candidate, paired=paired, confidence=confidence)
    if ratio.value is None:
        return Spread(ratio, None, None, None, ratio.reason)
    a, b = _samples(base, candidate, paired)
    larger = max(ratio.value, 1 / ratio.value)
    return Spread(ratio, brown_forsythe_p(a, b), _brown_forsythe_power(len(a), len(b), larger), _runs_needed(larger))


def sd_ratio(base: Numbers, candidate: Numbers, *, paired: bool, confidence: float = 0.95) -> Estimate:
    """Return the ratio of standard deviations, candidate over baseline.

    The interval is exact for normally distributed runs and covers far less when there are outliers. Common factors of a
    block's runs do not widen it for values that are `paired` by block (Pitman and Morgan, 1939). Otherwise it is that
    of the F test.
    """
    method = "Pitman–Morgan" if paired else "F"
    a, b = _samples(base, candidate, paired)
    n = min(len(a), len(b))
    if n < 3:
        return Estimate(None, None, None, confidence, n, method, "spread needs at least three runs an arm")
    sd_a, sd_b = float(a.std(ddof=1)), float(b.std(ddof=1))
    if min(sd_a, sd_b) <= 1e-12 * float(max(np.abs(a).max(), np.abs(b).max())):
        return Estimate(None, None, None, confidence, n, method, "the runs of an arm are equal: there is no ratio")
    squared = sd_b**2 / sd_a**2
    if paired:
        correlation = float(np.corrcoef(a, b)[0, 1])
        t = t_quantile(0.5 + confidence / 2, n - 2)
        k = 1 + 2 * max(0.0, 1 - correlation**2) * t**2 / (n - 2)
        reach = k + math.sqrt(k * k - 1)  # and k less the root is 1 / reach, which cancels nothing
        low, high = squared / reach, squared * reach
    else:
        low = squared / f_quantile(0.5 + confidence / 2, len(b) - 1, len(a) - 1)
        high = squared / f_quantile(0.5 - confidence / 2, len(b) - 1, len(a) - 1)
    return Estimate(math.sqrt(squared), math.sqrt(low), math.sqrt(high), confidence, n, method)


def _samples(base: Numbers, candidate: Numbers, paired: bool) -> tuple[Float64Array, Float64Array]:
    if not paired:
        return finite(base), finite(candidate)
    pairs = finite_pairs(base, candidate)
    return (np.empty(0), np.empty(0)) if isinstance(pairs, str) else pairs


def brown_forsythe_p(a: Float64Array, b: Float64Array) -> float | None:
    """Return the p-value of equal spread by the absolute deviations from the median (Brown & Forsythe, 1974).

    Each sample has at least two values. If the deviations have no spread themselves, there is no p-value.
    """
    test = _brown_forsythe(a, b)
    return float(test.pvalue) if math.isfinite(test.statistic) else None


def _brown_forsythe(a: Float64Array, b: Float64Array) -> Any:
    """Run the test along the last axis."""
    # `levene(center="median")` is this analysis of variance too, but older scipy takes one pair of samples at a time.
    deviations = [np.abs(values - np.median(values, axis=-1, keepdims=True)) for values in (a, b)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deviations without spread: the statistic is nan or infinite
        return scipy_stats().f_oneway(*deviations, axis=-1)


@lru_cache(maxsize=256)
def _brown_forsythe_power(n: int, m: int, ratio: float) -> float:
    """Simulate normal runs with a fixed seed: the same figures give the same answer."""
    rng = np.random.default_rng(0)
    test = _brown_forsythe(rng.standard_normal((SIMULATIONS, n)), ratio * rng.standard_normal((SIMULATIONS, m)))
    return float((test.pvalue < 0.05).mean())


def _runs_needed(ratio: float) -> int | None:
    """Return the runs per arm for `POWER` of the Brown–Forsythe test at a true SD ratio of at least 1."""
    if _brown_forsythe_power(MAX_RUNS, MAX_RUNS, ratio) < POWER:
        return None
    smaller = range(3, MAX_RUNS)  # the largest number is known to be enough
    return 3 + bisect_left(smaller, POWER, key=lambda n: _brown_forsythe_power(n, n, ratio))


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
