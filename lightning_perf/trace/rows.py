"""Rows of one kind of event while a file is read: one growing array a column.

``array.array`` takes a list in one call with hardly any fixed cost and grows in place. So pieces can be small enough
for the processor's cache, and everything that NumPy does better waits until the file is read.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_perf.trace.times import UNREADABLE_NS, decimal_ns

__all__ = ["Rows"]

_NOT_IN_64_BITS = (TypeError, OverflowError)
_LIMITS = {"i": 2**31, "q": 2**63}


class Rows:
    """The columns of one kind of event.

    Args:
        exact: Whether times come as integers and decimals and are kept in nanoseconds, not as float microseconds.
        columns: The array type code of each further column.
    """

    def __init__(self, exact: bool, **columns: str) -> None:
        self._exact = exact
        self.times: array[Any] = array("q" if exact else "d")
        self.durations: array[Any] = array("q" if exact else "d")
        self.columns: dict[str, array[Any]] = {name: array(code) for name, code in columns.items()}

    def __len__(self) -> int:
        return len(self.times)

    def add_times(self, times: list[Any], durations: list[Any]) -> None:
        """Add microseconds; None and what is no time of 64 bits is kept as unreadable."""
        for column, values in ((self.times, times), (self.durations, durations)):
            if self._exact:
                column.extend(_exact_ns(values))
                continue
            try:
                column.fromlist(values)
            except _NOT_IN_64_BITS:
                column.extend([_float(value) for value in values])

    def add_codes(self, column: str, codes: list[int]) -> None:
        """Add numbers that are known to fit."""
        self.columns[column].fromlist(codes)

    def add_integers(self, column: str, values: list[Any], default: int) -> None:
        """Add numbers from the file: text of digits counts, anything else becomes the default."""
        target = self.columns[column]
        try:
            target.fromlist(values)
        except _NOT_IN_64_BITS:
            limit = _LIMITS[target.typecode]
            clean = [_integer(value, default) for value in values]
            target.extend([value if -limit <= value < limit else default for value in clean])

    def add_floats(self, column: str, values: list[Any]) -> None:
        """Add numbers from the file; anything else becomes nan."""
        target = self.columns[column]
        try:
            target.fromlist(values)
        except _NOT_IN_64_BITS:
            target.extend([_float(value) for value in values])

    def take(self, column: str) -> NDArray[Any]:
        """A finished column as NumPy sees it, without a copy."""
        return np.asarray(self.columns.pop(column))


def _exact_ns(values: Sequence[int | Decimal | None]) -> list[int]:
    return [UNREADABLE_NS if value is None else decimal_ns(value) for value in values]


def _float(value: Any) -> float:
    if isinstance(value, int | float | Decimal):
        try:
            return float(value)
        except OverflowError:
            pass
    return float("nan")


def _integer(value: Any, default: int) -> int:
    if isinstance(value, str):
        # "stream 7" of the recordings of 2021, "0x1f" of ROCm, plain digits.
        try:
            return int(value.strip().rsplit(" ", 1)[-1][:40], 0)
        except ValueError:
            return default
    if isinstance(value, float):
        return int(value) if np.isfinite(value) else default
    return value if isinstance(value, int) else default
