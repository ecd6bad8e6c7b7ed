"""Imports scipy on first use, and wraps its quantiles and cumulative distributions as plain functions.

These come from scipy.special, which imports faster than scipy.stats. tune needs nothing else.
"""

from __future__ import annotations

from typing import Any

from lightning_perf.lazy_imports import import_extra
from lightning_perf.statistics.values import Float64Array


def scipy_stats() -> Any:
    """Return the module scipy.stats."""
    return import_extra("scipy.stats", "compare")


def _special() -> Any:
    return import_extra("scipy.special", "compare")


def t_quantile(probability: float, df: float) -> float:
    """Quantile of Student's t."""
    return float(_special().stdtrit(df, probability))


def t_cdf(value: float, df: float) -> float:
    """Cumulative distribution of Student's t."""
    return float(_special().stdtr(df, value))


def normal_cdf(values: Float64Array) -> Float64Array:
    """Cumulative distribution of the standard normal."""
    result: Float64Array = _special().ndtr(values)
    return result


def f_quantile(probability: float, df_numerator: float, df_denominator: float) -> float:
    """Quantile of Fisher's F."""
    return float(_special().fdtri(df_numerator, df_denominator, probability))


def chi_square_quantile(probabilities: Float64Array, df: float) -> Float64Array:
    """Quantiles of chi-square."""
    result: Float64Array = 2 * _special().gammaincinv(df / 2, probabilities)
    return result
