"""One place that formats times, bytes, FLOPs, rates and shares for people.

Every figure that is shown goes through here, so that a quantity looks the same on the console, in Markdown and in HTML.
Three significant digits; ``NOT_AVAILABLE`` for ``None`` and for what is not a finite number.
"""

from __future__ import annotations

import math
from itertools import pairwise

__all__ = [
    "NOT_AVAILABLE",
    "format_bandwidth",
    "format_bytes",
    "format_count",
    "format_duration",
    "format_flop_rate",
    "format_flops",
    "format_rate",
    "format_ratio",
    "format_share",
]

NOT_AVAILABLE = "–"
"""What stands where there is no value."""

_TIMES = ((1, "ns"), (10**3, "µs"), (10**6, "ms"), (10**9, "s"))
_BINARY = ((1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"), (2**40, "TiB"), (2**50, "PiB"))
_DECIMAL = ((1, ""), (10**3, "k"), (10**6, "M"), (10**9, "G"), (10**12, "T"), (10**15, "P"), (10**18, "E"))


def format_duration(time_ns: float | None) -> str:
    """A length of time.

    Args:
        time_ns: Nanoseconds.

    Example:
        >>> [format_duration(t) for t in (950, 1234, 81_250_000, 1.5e9, 75e9, 5400e9, 0, None)]
        ['950 ns', '1.23 µs', '81.2 ms', '1.50 s', '1 min 15 s', '1 h 30 min', '0 ns', '–']
    """
    if time_ns is None or not math.isfinite(time_ns):
        return NOT_AVAILABLE
    seconds = round(abs(time_ns) / 10**9)
    sign = "-" if time_ns < 0 else ""
    if seconds >= 3600:
        return f"{sign}{seconds // 3600} h {seconds % 3600 // 60} min"
    if seconds >= 60:
        return f"{sign}{seconds // 60} min {seconds % 60} s"
    return _scaled(time_ns, _TIMES)


def format_bytes(size_bytes: float | None) -> str:
    """An amount of memory, in powers of 1024.

    Example:
        >>> [format_bytes(n) for n in (0, 1023, 1024, 80 * 2**30, None)]
        ['0 B', '1023 B', '1.00 KiB', '80.0 GiB', '–']
    """
    return _scaled(size_bytes, _BINARY)


def format_bandwidth(bytes_per_second: float | None) -> str:
    """Bytes a second, in powers of 1000 as vendors state them.

    Example:
        >>> format_bandwidth(3.35e12)
        '3.35 TB/s'
    """
    return _scaled(bytes_per_second, tuple((factor, f"{prefix}B/s") for factor, prefix in _DECIMAL))


def format_flops(flops: float | None) -> str:
    """A count of floating-point operations.

    Example:
        >>> format_flops(3.64e9)
        '3.64 GFLOPs'
    """
    return _scaled(flops, tuple((factor, f"{prefix}FLOPs") for factor, prefix in _DECIMAL))


def format_flop_rate(flops_per_second: float | None) -> str:
    """Floating-point operations a second.

    Example:
        >>> format_flop_rate(989.4e12)
        '989 TFLOP/s'
    """
    return _scaled(flops_per_second, tuple((factor, f"{prefix}FLOP/s") for factor, prefix in _DECIMAL))


def format_rate(per_second: float | None, noun: str) -> str:
    """Things a second.

    Example:
        >>> format_rate(12345.6, "samples"), format_rate(0.5, "steps")
        ('12,346 samples/s', '0.500 steps/s')
    """
    if per_second is None or not math.isfinite(per_second):
        return NOT_AVAILABLE
    return f"{_grouped(per_second)} {noun}/s"


def format_count(count: float | None) -> str:
    """A number of things.

    Example:
        >>> format_count(1234567), format_count(2.5)
        ('1,234,567', '2.50')
    """
    if count is None or not math.isfinite(count):
        return NOT_AVAILABLE
    return f"{count:,.0f}" if float(count).is_integer() else _grouped(count)


def format_share(share: float | None) -> str:
    """A part of a whole as per cent. What is there but tiny never reads zero, and what is not whole never reads 100.

    Args:
        share: From 0 to 1.

    Example:
        >>> [format_share(s) for s in (0, 0.0002, 0.0312, 0.546, 0.9999, 1, None)]
        ['0 %', '<0.1 %', '3.1 %', '54.6 %', '>99.9 %', '100 %', '–']
    """
    if share is None or not math.isfinite(share):
        return NOT_AVAILABLE
    if share in (0, 1):
        return f"{share:.0%}".replace("%", " %")
    text = f"{100 * share:.1f}"
    if text in ("0.0", "-0.0"):
        return "<0.1 %" if share > 0 else ">-0.1 %"
    return ">99.9 %" if text == "100.0" and share < 1 else f"{text} %"


def format_ratio(ratio: float | None) -> str:
    """How many times as much.

    Example:
        >>> format_ratio(1.0638)
        '1.06×'
    """
    return NOT_AVAILABLE if ratio is None or not math.isfinite(ratio) else f"{_digits(ratio)}×"


def _scaled(value: float | None, units: tuple[tuple[int, str], ...]) -> str:
    """The value in the largest unit that it fills, after rounding: 999,999 is 1.00 M and not 1000 k."""
    if value is None or not math.isfinite(value):
        return NOT_AVAILABLE
    for (factor, unit), limit in zip(units, [b / a for (a, _), (b, _) in pairwise(units)], strict=False):
        whole = factor == 1 and float(value).is_integer()
        text = f"{value:.0f}" if whole else _digits(value / factor)
        if abs(float(text)) < limit:
            return f"{text} {unit}".strip()
    factor, unit = units[-1]
    return f"{_digits(value / factor)} {unit}"


def _grouped(value: float) -> str:
    """Three significant digits, or all of the integer part in groups of three."""
    return _digits(value) if abs(value) < 999.5 else f"{value:,.0f}"


def _digits(value: float) -> str:
    """Three significant digits, without an exponent; all digits of the integer part."""
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if round(abs(value), 2 - exponent) >= 10 ** (exponent + 1):
        exponent += 1
    return f"{value:.{max(0, min(2 - exponent, 12))}f}"
