"""Figures of one metric in one unit, so that a table says the unit once and its columns stay narrow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from lightning_perf.units import NOT_AVAILABLE

__all__ = ["Figures", "figures_of"]

_TIMES_IN_S = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))
_UNITS = {
    "s": _TIMES_IN_S,
    "ms": tuple((factor * 1000, unit) for factor, unit in _TIMES_IN_S),
    "bytes": ((1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB")),
    "share": ((0.01, "%"),),
    "samples/s": ((1.0, "samples/s"),),
}
"""For each unit of a metric those it is shown in, the smallest first, with how much of the former they are."""

DIGITS = 4
DIGITS_OF_SPREAD = 2


@dataclass(frozen=True)
class Figures:
    """How the figures of one metric are shown.

    Attributes:
        unit: The unit.
        factor: How much it is of the metric's own.
        decimals: Digits behind the point.
    """

    unit: str
    factor: float
    decimals: int

    def value(self, value: float | None) -> str:
        """A value, with the decimals of all; one that would read as nothing beside the others has its own."""
        if not _is_finite(value):
            return NOT_AVAILABLE
        shown = value / self.factor
        vanishes = shown and not round(shown, self.decimals)
        return f"{shown:,.{_decimals(shown, DIGITS_OF_SPREAD) if vanishes else self.decimals}f}"

    def spread(self, value: float | None) -> str:
        """A standard deviation, which needs digits of its own when it is small."""
        if not _is_finite(value):
            return NOT_AVAILABLE
        shown = value / self.factor
        return f"{shown:,.{max(self.decimals, _decimals(shown, DIGITS_OF_SPREAD))}f}" if shown else "0"


def figures_of(unit: str, values: Sequence[float | None]) -> Figures:
    """Choose unit and decimals for values that stand below each other: four digits of the largest.

    Args:
        unit: The unit that the values are in: ``s``, ``ms``, ``bytes``, ``share`` or ``samples/s``.
        values: The values.

    Example:
        >>> figures = figures_of("ms", [1234.5, 980.0])
        >>> figures.unit, figures.value(980.0), figures.spread(1.25)
        ('s', '0.980', '0.0013')
    """
    largest = max((abs(value) for value in values if _is_finite(value)), default=0.0)
    factor, name = next(
        (entry for entry in reversed(_UNITS[unit]) if largest >= entry[0]),
        _UNITS[unit][0],
    )
    return Figures(name, factor, min(3, _decimals(largest / factor, DIGITS)))


def _decimals(value: float, digits: int) -> int:
    return max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0


def _is_finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
