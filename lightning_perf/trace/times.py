"""Microseconds as written in the file ─► nanoseconds, exactly.

The format's times are microseconds whatever ``displayTimeUnit`` says. A float64 holds them to the nanosecond up to
2**43 µs (101 days): enough for recordings with a ``baseTimeNanoseconds``, not for microseconds since 1970 with a
fraction, which have to be read as decimals.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from lightning_perf.trace.columns import Int64Array

__all__ = ["UNREADABLE_NS", "InexactTimeError", "decimal_ns", "nanoseconds"]

UNREADABLE_NS = int(np.iinfo(np.int64).min)
"""Stands for a time that is missing or beyond 2**61 ns (73 years on either side of the clock's origin)."""

FLOAT_EXACT_BELOW_US = 2.0**43
_LIMIT_NS = 2**61
_LIMIT_US = _LIMIT_NS // 1000
_BLOCK_ROWS = 1 << 18


class InexactTimeError(ValueError):
    """Float64 does not hold these times to the nanosecond: read them as decimals."""


def nanoseconds(microseconds: NDArray[np.float64]) -> Int64Array:
    """Convert times or durations: integer part × 1000 plus the rounded fraction (never ``float × 1000``).

    Args:
        microseconds: Times; nan where the file has none.

    Returns:
        Nanoseconds; `UNREADABLE_NS` for what is missing or out of range.

    Raises:
        InexactTimeError: If one is in range but too large to be exact to the nanosecond.

    Example:
        >>> nanoseconds(np.array([4203669604595.407, 3])).tolist()
        [4203669604595407, 3000]
    """
    result = np.empty(len(microseconds), dtype=np.int64)
    for begin in range(0, len(microseconds), _BLOCK_ROWS):
        values = microseconds[begin : begin + _BLOCK_ROWS]
        size = np.abs(values)
        readable = size < _LIMIT_US
        if not readable.all():
            values, size = np.where(readable, values, 0.0), np.where(readable, size, 0.0)
        if size.max() >= FLOAT_EXACT_BELOW_US:
            raise InexactTimeError
        whole = np.floor(values)
        ns = whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)
        result[begin : begin + _BLOCK_ROWS] = np.where(readable, ns, UNREADABLE_NS)
    return result


def decimal_ns(microseconds: Decimal | int) -> int:
    """Convert one time that was read as an integer or a decimal; `UNREADABLE_NS` when out of range.

    Example:
        >>> decimal_ns(Decimal("1712195495502094.565"))
        1712195495502094565
    """
    if not -_LIMIT_US < microseconds < _LIMIT_US:
        return UNREADABLE_NS
    return round(microseconds * 1000)
