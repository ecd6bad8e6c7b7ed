"""Microseconds as written in the file ─► nanoseconds, exactly.

The format's times are microseconds whatever ``displayTimeUnit`` says. A float64 holds them to the nanosecond up to
2**43 µs (101 days): enough for recordings with a ``baseTimeNanoseconds``, not for microseconds since 1970 with a
fraction, which have to be read as decimals.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import numpy as np

from lightning_perf.trace.columns import Int64Array

__all__ = ["UNREADABLE_NS", "InexactTimeError", "decimal_ns", "nanoseconds"]

UNREADABLE_NS = np.iinfo(np.int64).min
"""Stands for a time that cannot be a nanosecond count of 62 bits."""

_FLOAT_EXACT_BELOW_US = 2.0**43
_LIMIT_US = 2**62 // 1000


class InexactTimeError(ValueError):
    """Float64 does not hold these times to the nanosecond: read them as decimals."""


def nanoseconds(microseconds: Sequence[Decimal | float | None]) -> Int64Array:
    """Convert times or durations: integer part × 1000 plus the rounded fraction (never ``float × 1000``).

    Args:
        microseconds: Integers and floats, or decimals; None where the file has none.

    Returns:
        Nanoseconds; `UNREADABLE_NS` for what is missing or out of range.

    Raises:
        InexactTimeError: If a float is too large to be exact to the nanosecond.

    Example:
        >>> nanoseconds([4203669604595.407, 3]).tolist()
        [4203669604595407, 3000]
    """
    values = np.array(microseconds)
    if values.dtype == np.int64:
        readable = np.abs(values) < _LIMIT_US
        return values * 1000 if readable.all() else np.where(readable, values * 1000, UNREADABLE_NS)
    if values.dtype != np.float64:  # decimals, integers beyond 64 bits, missing values
        exact = (UNREADABLE_NS if value is None else decimal_ns(value) for value in microseconds)
        return np.fromiter(exact, dtype=np.int64, count=len(microseconds))
    readable = np.abs(values) < _LIMIT_US
    all_readable = bool(readable.all())
    if not all_readable:
        values = np.where(readable, values, 0.0)
    if len(values) and np.abs(values).max() >= _FLOAT_EXACT_BELOW_US:
        raise InexactTimeError
    whole = np.floor(values)
    ns = whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)
    return ns if all_readable else np.where(readable, ns, UNREADABLE_NS)


def decimal_ns(microseconds: Decimal | float) -> int:
    """Convert one time that was read as a decimal; `UNREADABLE_NS` when out of range.

    Example:
        >>> decimal_ns(Decimal("1712195495502094.565"))
        1712195495502094565
    """
    if isinstance(microseconds, float) and abs(microseconds) >= _FLOAT_EXACT_BELOW_US:
        raise InexactTimeError
    value = Decimal(microseconds)
    if not value.is_finite() or abs(value) >= _LIMIT_US:
        return UNREADABLE_NS
    return int((value * 1000).to_integral_value())
