"""Changes in words: a ratio as a signed percentage, and beyond a factor of ten as that factor."""

from __future__ import annotations

import math

__all__ = ["factor_text", "points_text", "signed_percent", "two_digits"]

TENFOLD = 10.0
"""From here on percentages mislead: −99.9 % looks like −99.99 %, and nobody reads +218,209 %."""

MOST, MOST_TEXT = 1e6, "10⁶"
LEAST, LEAST_TEXT = 1e-6, "10⁻⁶"
"""Factors beyond say no more than that the runs do not tell; the document has the numbers."""


def signed_percent(ratio: float | None) -> str:
    """A ratio as a signed change, or as a factor when it is tenfold or more.

    Example:
        >>> signed_percent(0.94), signed_percent(1.5), signed_percent(1.0), signed_percent(0.998)
        ('−6.0 %', '+50.0 %', '±0 %', '−0.20 %')
        >>> signed_percent(17.865), signed_percent(0.0123), signed_percent(2e14)
        ('×17.9', '×0.012', 'over ×10⁶')
    """
    if ratio is None:
        return "–"
    if not 1 / TENFOLD < ratio < TENFOLD:
        return factor_text(ratio, "×")
    change = 100 * (ratio - 1)
    if abs(change) < 0.005:
        return "±0 %"
    digits = 0 if abs(change) >= 99.95 else 1 if abs(change) >= 0.995 else 2
    return f"{'+' if change > 0 else '−'}{abs(change):.{digits}f} %"


def factor_text(factor: float | None, mark: str = "") -> str:
    """A factor, as a speed-up.

    Args:
        factor: A positive number.
        mark: Stands before the number.

    Example:
        >>> factor_text(1.0638), factor_text(0.00213), factor_text(345.6), factor_text(1e-9)
        ('1.064', '0.0021', '346', 'under 10⁻⁶')
    """
    if factor is None:
        return "–"
    if factor > MOST:
        return f"over {mark}{MOST_TEXT}"
    if factor < LEAST:
        return f"under {mark}{LEAST_TEXT}"
    if factor <= 1 / TENFOLD:
        return f"{mark}{factor:.{1 - math.floor(math.log10(factor))}f}"
    return f"{mark}{factor:.{3 if factor < TENFOLD else 1 if factor < 99.95 else 0}f}"


def points_text(share: float | None, unit: str = "points") -> str:
    """A difference of shares in percentage points.

    Example:
        >>> points_text(-0.0123), points_text(0.5, "pt")
        ('−1.23 points', '+50.00 pt')
    """
    return "–" if share is None else f"{'−' if share < 0 else '+'}{abs(100 * share):.2f} {unit}"


def two_digits(number: float) -> str:
    """A number with two digits, or all those before the point.

    Example:
        >>> two_digits(0.8512), two_digits(12.6), two_digits(331.4)
        ('0.85', '13', '331')
    """
    return f"{number:.0f}" if abs(number) >= 9.95 else f"{number:.2g}"
