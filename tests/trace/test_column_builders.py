from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.trace.column_builders import UNREADABLE_NS, InexactTimeError, decimal_ns, nanoseconds


@given(st.integers(0, 2**43 * 1000 - 1000))
def test_floats_below_the_limit_are_exact(ns: int) -> None:
    assert nanoseconds(np.array([float(f"{ns // 1000}.{ns % 1000:03d}")])).tolist() == [ns]


@given(st.integers(-(2**61) + 10**6, 2**61 - 10**6))
def test_decimals_are_always_exact(ns: int) -> None:
    assert decimal_ns(Decimal(ns).scaleb(-3)) == ns


def test_a_float_that_cannot_hold_nanoseconds_is_refused() -> None:
    with pytest.raises(InexactTimeError):
        nanoseconds(np.array([1.0, 1712195495502094.5]))


def test_missing_and_absurd_times() -> None:
    assert nanoseconds(np.array([np.nan, np.inf, -1e300, -2.5])).tolist() == [UNREADABLE_NS] * 3 + [-2500]
    assert [decimal_ns(Decimal("1e999999")), decimal_ns(10**30)] == [UNREADABLE_NS] * 2
