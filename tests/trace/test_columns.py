"""Columns against a list of the same numbers, whether or not one number stands for all rows."""

import math
import random
from typing import Any

import numpy as np
import pytest

from lightning_perf.trace.column_builders import Rows

NAN = float("nan")


def kept(value: Any, default: int) -> int:
    """The number that a column of 64-bit integers keeps."""
    fits = isinstance(value, int) and -(2**63) <= value < 2**63
    return value if fits else default


@pytest.mark.parametrize("seed", range(60))
def test_columns_keep_all_numbers(seed: int) -> None:
    rng = random.Random(seed)
    choices: list[list[Any]] = [[0], [7], [-1, -1, -1, 3], [0, 2**62, None, 2**63], [5, 5, 5, [], 5]]
    shares_of: list[list[Any]] = [[NAN], [0.5], [0.5, NAN, None]]
    values: list[Any] = []
    floats: list[Any] = []
    whole, parts = Rows(exact=False, number="q", share="f"), []
    for _ in range(rng.randrange(1, 5)):
        part = Rows(exact=False, number="q", share="f")
        for _ in range(rng.randrange(1, 4)):
            rows = rng.randrange(1, 6)
            numbers = rng.choices(rng.choice(choices[: 1 + seed % 5]), k=rows)
            shares = rng.choices(rng.choice(shares_of[: 1 + seed % 3]), k=rows)
            part.add_times([2.5] * rows, [0] * rows)
            part.add_integers("number", numbers, -9)
            part.add_floats("share", shares)
            values += [kept(value, -9) for value in numbers]
            floats += [NAN if share is None else share for share in shares]
        parts.append(part)
    for part in parts:  # as they come from other processes
        whole.extend(len(part), part.encoded(), {})
    assert len(whole) == len(values)
    times, durations = whole.take_times()
    assert times.tolist() == [2.5] * len(values)
    assert durations.tolist() == [0.0] * len(values)
    number = whole.take("number")
    assert number.dtype == np.int64
    assert number.tolist() == values
    assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(whole.take("share"), floats, strict=True))
    assert (number.strides == (0,)) == (len(set(values)) == 1 and len(values) > 1)
    assert times.strides == (0,) or len(values) == 1
