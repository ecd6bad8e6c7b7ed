"""Formats times, bytes, FLOPs, rates, shares and changes for people, in one place.

Every figure that is shown is formatted here, so that a quantity looks the same on the console, in Markdown and in HTML.
Figures have three significant digits. ``NOT_AVAILABLE`` replaces ``None`` and numbers that are not finite. The figures
of a column share one unit (`column_format`), and so do those of an axis (`axis_unit`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeGuard

from msgspec import Struct

NOT_AVAILABLE = "–"
"""Text for a missing value."""

MINUS = "−"
"""The minus sign, which is as wide as a plus sign."""

_TIMES = ((1, "ns"), (10**3, "µs"), (10**6, "ms"), (10**9, "s"))
_BINARY = ((1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"), (2**40, "TiB"), (2**50, "PiB"))
_DECIMAL = ((1, ""), (10**3, "k"), (10**6, "M"), (10**9, "G"), (10**12, "T"), (10**15, "P"), (10**18, "E"))

TENFOLD = 10.0
"""From this factor on, percentages mislead: −99.9 % looks like −99.99 %, and nobody reads +218,209 %."""

_MOST, _MOST_TEXT = 1e6, "10⁶"
_LEAST, _LEAST_TEXT = 1e-6, "10⁻⁶"
"""Factors beyond these bounds are shown as the bound. The document has the exact numbers."""

_SECONDS = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))
_COLUMN_UNITS = {
    "s": _SECONDS,
    "ms": tuple((factor * 1000, unit) for factor, unit in _SECONDS),
    "bytes": ((1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB")),
    "share": ((0.01, "%"),),
    "samples/s": ((1.0, "samples/s"),),
    "": ((1.0, ""),),
}
"""The units that a column of each unit can show, the smallest first, each as a multiple of the given unit."""

_COLUMN_DIGITS = 4
_DEVIATION_DIGITS = 2


def format_duration(time_ns: float | None) -> str:
    """Format a length of time.

    Example:
        >>> [format_duration(t) for t in (950, 1234, 81_250_000, 1.5e9, 75e9, 5400e9, 0, None)]
        ['950 ns', '1.23 µs', '81.2 ms', '1.50 s', '1 min 15 s', '1 h 30 min', '0 ns', '–']
    """
    if time_ns is None or not math.isfinite(time_ns):
        return NOT_AVAILABLE
    seconds = round(abs(time_ns) / 10**9)
    sign = MINUS if time_ns < 0 else ""
    if seconds >= 3600:
        return f"{sign}{seconds // 3600} h {seconds % 3600 // 60} min"
    if seconds >= 60:
        return f"{sign}{seconds // 60} min {seconds % 60} s"
    return _scaled(time_ns, _TIMES)


def format_milliseconds(time_ms: float | None) -> str:
    """Format a length of time given in milliseconds.

    Example:
        >>> format_milliseconds(0.25), format_milliseconds(None)
        ('250 µs', '–')
    """
    return format_duration(None if time_ms is None else 1e6 * time_ms)


def format_bytes(size_bytes: float | None) -> str:
    """Format an amount of memory, in powers of 1024.

    Example:
        >>> [format_bytes(n) for n in (0, 1023, 1024, 80 * 2**30, None)]
        ['0 B', '1023 B', '1.00 KiB', '80.0 GiB', '–']
    """
    return _scaled(size_bytes, _BINARY)


def format_bandwidth(bytes_per_second: float | None) -> str:
    """Format bytes per second, in powers of 1000 as vendors do.

    Example:
        >>> format_bandwidth(3.35e12)
        '3.35 TB/s'
    """
    return _scaled(bytes_per_second, tuple((factor, f"{prefix}B/s") for factor, prefix in _DECIMAL))


def format_flops(flops: float | None) -> str:
    """Format a count of floating-point operations.

    Example:
        >>> format_flops(3.64e9)
        '3.64 GFLOPs'
    """
    return _scaled(flops, tuple((factor, f"{prefix}FLOPs") for factor, prefix in _DECIMAL))


def format_flop_rate(flops_per_second: float | None) -> str:
    """Format floating-point operations per second.

    Example:
        >>> format_flop_rate(989.4e12)
        '989 TFLOP/s'
    """
    return _scaled(flops_per_second, tuple((factor, f"{prefix}FLOP/s") for factor, prefix in _DECIMAL))


def format_energy(joules: float | None) -> str:
    """Format an energy.

    Example:
        >>> format_energy(2_520_000)
        '2.52 MJ'
    """
    return _scaled(joules, tuple((factor, f"{prefix}J") for factor, prefix in _DECIMAL))


def format_rate(per_second: float | None, noun: str) -> str:
    """Format things per second.

    Example:
        >>> format_rate(12345.6, "samples"), format_rate(0.5, "steps")
        ('12,346 samples/s', '0.500 steps/s')
    """
    if per_second is None or not math.isfinite(per_second):
        return NOT_AVAILABLE
    return f"{_grouped(per_second)} {noun}/s"


def format_count(count: float | None) -> str:
    """Format a number of things. A tiny mean never reads 0.

    Example:
        >>> format_count(1234567), format_count(2.5), format_count(3.41e-6)
        ('1,234,567', '2.50', '<0.001')
    """
    if count is None or not math.isfinite(count):
        return NOT_AVAILABLE
    if 0 < count < 0.0005:
        return "<0.001"
    return with_minus(f"{count:,.0f}") if float(count).is_integer() else _grouped(count)


def counted(number: float, noun: str, plural: str = "") -> str:
    """Return a number with its noun.

    Example:
        >>> counted(1, "launch", "launches"), counted(1541, "launch", "launches"), counted(2.5, "kernel")
        ('1 launch', '1,541 launches', '2.50 kernels')
    """
    return f"{format_count(number)} {noun if number == 1 else plural or f'{noun}s'}"


def format_share(share: float | None) -> str:
    """Format a share as a percentage. A tiny share never reads 0 %, and an incomplete one never reads 100 %.

    Example:
        >>> [format_share(s) for s in (0, 0.0002, 0.0312, 0.546, 0.9999, 1, None)]
        ['0 %', '<0.1 %', '3.1 %', '54.6 %', '>99.9 %', '100 %', '–']
    """
    if share is None or not math.isfinite(share):
        return NOT_AVAILABLE
    if share in (0, 1):
        return f"{share:.0%}".replace("%", " %")
    text = with_minus(f"{100 * share:.1f}")
    if text in ("0.0", f"{MINUS}0.0"):
        return "<0.1 %" if share > 0 else f">{MINUS}0.1 %"
    return ">99.9 %" if text == "100.0" and share < 1 else f"{text} %"


def format_ratio(ratio: float | None) -> str:
    """Format a ratio as a multiple.

    Example:
        >>> format_ratio(1.0638)
        '1.06×'
    """
    return NOT_AVAILABLE if ratio is None or not math.isfinite(ratio) else f"{_digits(ratio)}×"


def format_change(ratio: float | None) -> str:
    """Format a ratio as a signed percentage, or as a factor if it is tenfold or more.

    Example:
        >>> format_change(0.94), format_change(1.5), format_change(1.0), format_change(0.998)
        ('−6.0 %', '+50.0 %', '±0 %', '−0.20 %')
        >>> format_change(17.865), format_change(0.0123), format_change(2e14)
        ('×17.9', '×0.012', 'over ×10⁶')
    """
    if ratio is None:
        return NOT_AVAILABLE
    if not 1 / TENFOLD < ratio < TENFOLD:
        return format_factor(ratio, "×")
    change = 100 * (ratio - 1)
    if abs(change) < 0.005:
        return "±0 %"
    digits = 0 if abs(change) >= 99.95 else 1 if abs(change) >= 0.995 else 2
    return f"{'+' if change > 0 else MINUS}{abs(change):.{digits}f} %"


def format_factor(factor: float | None, mark: str = "") -> str:
    """Format a factor, e.g. a speed-up.

    Example:
        >>> format_factor(1.0638), format_factor(0.00213), format_factor(345.6), format_factor(1e-9)
        ('1.064', '0.0021', '346', 'under 10⁻⁶')
    """
    if factor is None:
        return NOT_AVAILABLE
    if factor > _MOST:
        return f"over {mark}{_MOST_TEXT}"
    if factor < _LEAST:
        return f"under {mark}{_LEAST_TEXT}"
    if factor <= 1 / TENFOLD:
        return f"{mark}{factor:.{1 - math.floor(math.log10(factor))}f}"
    return f"{mark}{factor:.{3 if factor < TENFOLD else 1 if factor < 99.95 else 0}f}"


def format_points(share: float | None, unit: str = "points") -> str:
    """Format a difference of shares in percentage points.

    Example:
        >>> format_points(-0.0123), format_points(0.5, "pt"), format_points(-1e-9)
        ('−1.23 points', '+50.00 pt', '+0.00 points')
    """
    if share is None:
        return NOT_AVAILABLE
    size = f"{abs(100 * share):.2f}"
    return f"{MINUS if share < 0 and float(size) else '+'}{size} {unit}"


def two_digits(number: float) -> str:
    """Format a number with two digits, or all digits before the point.

    Example:
        >>> two_digits(0.8512), two_digits(12.6), two_digits(331.4)
        ('0.85', '13', '331')
    """
    return f"{number:.0f}" if abs(number) >= 9.95 else f"{number:.2g}"


def format_detectable(detectable: float, *, percent: str = "", factor: str = "") -> str:
    """Format the smallest detectable change of a ratio, as a percentage or, from tenfold on, as a factor.

    Args:
        factor: Prefix of a factor; ``×`` without it.

    Example:
        >>> format_detectable(0.126), format_detectable(33.2), format_detectable(1e20, factor="a factor of ")
        ('13 %', '×34.2', 'a factor of over 10⁶')
    """
    if 1 + detectable < TENFOLD:
        return f"{percent}{two_digits(100 * detectable)} %"
    return factor + format_factor(1 + detectable) if factor else format_factor(1 + detectable, "×")


class ColumnFormat(Struct, frozen=True):
    """One unit and number of decimals for all figures of a column, so that the column stays narrow.

    Attributes:
        factor: The unit as a multiple of the one that values are given in.
    """

    unit: str
    factor: float
    decimals: int

    def value(self, value: float | None) -> str:
        """Format a value with the decimals of the column, or with more if it would read as zero."""
        if not _is_finite(value):
            return NOT_AVAILABLE
        shown = value / self.factor
        if abs(shown) >= 1e15:
            return with_minus(f"{shown:.3e}")
        vanishes = shown and not round(shown, self.decimals)
        return with_minus(f"{shown:,.{_decimals(shown, _DEVIATION_DIGITS) if vanishes else self.decimals}f}")

    def deviation(self, value: float | None) -> str:
        """Format a standard deviation, with more decimals if it is small."""
        if not _is_finite(value):
            return NOT_AVAILABLE
        shown = value / self.factor
        return f"{shown:,.{max(self.decimals, _decimals(shown, _DEVIATION_DIGITS))}f}" if shown else "0"


def column_format(unit: str, values: Sequence[float | None]) -> ColumnFormat:
    """Choose unit and decimals for a column of values: four digits of the largest.

    Args:
        unit: The unit that the values are in: ``s``, ``ms``, ``bytes``, ``share``, ``samples/s``, or empty.

    Example:
        >>> figures = column_format("ms", [1234.5, 980.0])
        >>> figures.unit, figures.value(980.0), figures.deviation(1.25)
        ('s', '0.980', '0.0013')
    """
    largest = max((abs(value) for value in values if _is_finite(value)), default=0.0)
    factor, name = next(
        (entry for entry in reversed(_COLUMN_UNITS[unit]) if largest >= entry[0]),
        _COLUMN_UNITS[unit][0],
    )
    return ColumnFormat(name, factor, min(3, _decimals(largest / factor, _COLUMN_DIGITS)))


def axis_unit(unit: str, largest: float) -> tuple[float, str]:
    """Return the factor for values on the axis of a plot, and the unit that they then have.

    Example:
        >>> axis_unit("ms", 25_000.0), axis_unit("share", 1.0)
        ((0.001, 's'), (100, '%'))
    """
    if unit == "share":
        return 100, "%"
    if unit == "ms":
        return (0.001, "s") if largest >= 10_000 else (1, "ms") if largest >= 0.1 else (1000, "µs")
    if unit == "bytes":
        return 1 / 2**20, "MiB"
    if unit == "s" and largest >= 600:
        return 1 / 60, "min"
    return 1, unit


def with_minus(number: str) -> str:
    """Return a number as text with a real minus sign.

    Example:
        >>> with_minus("-1e-05"), with_minus("2.5")
        ('−1e-05', '2.5')
    """
    return f"{MINUS}{number[1:]}" if number.startswith("-") else number


def _scaled(value: float | None, units: tuple[tuple[int, str], ...]) -> str:
    """Format a value in the largest unit that it fills after rounding: 999,999 is 1.00 M and not 1000 k."""
    if value is None or not math.isfinite(value):
        return NOT_AVAILABLE
    sign, size = MINUS if value < 0 else "", abs(value)
    for (factor, unit), limit in zip(units, [b / a for (a, _), (b, _) in pairwise(units)], strict=False):
        whole = factor == 1 and float(size).is_integer()
        text = f"{size:.0f}" if whole else _digits(size / factor)
        if float(text) < limit:
            return f"{sign}{text} {unit}".strip()
    factor, unit = units[-1]
    return f"{sign}{_digits(size / factor)} {unit}"


def _grouped(value: float) -> str:
    """Format three significant digits, or all of the integer part in groups of three."""
    return _digits(value) if abs(value) < 999.5 else with_minus(f"{value:,.0f}")


def _digits(value: float) -> str:
    """Format three significant digits, without an exponent, or all digits of the integer part."""
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if round(abs(value), 2 - exponent) >= 10 ** (exponent + 1):
        exponent += 1
    return with_minus(f"{value:.{max(0, min(2 - exponent, 12))}f}")


def _decimals(value: float, digits: int) -> int:
    return max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0


def _is_finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def describe_left(seconds: float) -> str:
    """Return the time that is left in words.

    Example:
        >>> describe_left(725), describe_left(204), describe_left(42), describe_left(-1)
        ('12 min left', '3 min 24 s left', '42 s left', 'no time left')
    """
    if seconds >= 600:
        return f"{seconds / 60:.0f} min left"
    if seconds >= 120:
        return f"{format_duration(1e9 * seconds)} left"
    return f"{seconds:.0f} s left" if seconds > 0 else "no time left"
