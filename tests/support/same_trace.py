"""Whether two traces are equal in every column, name and note."""

from typing import Any

import numpy as np
from msgspec import Struct

from lightning_perf.trace.trace import Trace


def assert_same_trace(one: Trace, other: Trace) -> None:
    """Compare two traces, codes and types included."""
    _compare(one, other, "trace")


def _compare(one: Any, other: Any, where: str) -> None:
    assert type(one) is type(other), where
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, where
        np.testing.assert_array_equal(one, other, err_msg=where)
    elif isinstance(one, Struct):
        for name in one.__struct_fields__:
            _compare(getattr(one, name), getattr(other, name), f"{where}.{name}")
    elif isinstance(one, tuple):
        assert len(one) == len(other), where
        for at, (left, right) in enumerate(zip(one, other, strict=True)):
            _compare(left, right, f"{where}[{at}]")
    else:
        assert one == other, where
