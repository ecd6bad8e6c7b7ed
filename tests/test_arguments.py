"""Option types say what they want; none of their errors names a function."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from lightning_perf.arguments import at_least, input_shape, positive, share, within


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (at_least(0), "0", 0),
        (at_least(0, 65535), "65535", 65535),
        (within(0, 100), "100", 100.0),
        (positive, "1e-3", 1e-3),
        (share, "0.5", 0.5),
        (input_shape, "3,224,224", (3, 224, 224)),
        (input_shape, "1x28x28", (1, 28, 28)),
        (input_shape, "16", (16,)),
    ],
)
def test_what_is_taken(kind: Callable[[str], object], text: str, value: object) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (at_least(1), "0", "0 is below 1"),
        (at_least(1), "many", "'many' is not a whole number"),
        (at_least(0, 65535), "65536", "65536 is above 65535"),
        (within(0, 100), "100.5", "100.5 is not from 0 to 100"),
        (within(0, 100), "nan", "nan is not from 0 to 100"),
        (positive, "0", "0 is not a positive number"),
        (positive, "inf", "inf is not a positive number"),
        (positive, "soon", "'soon' is not a number"),
        (share, "1", "1 is not between 0 and 1"),
        (share, "half", "'half' is not a number"),
        (input_shape, "3,x", "no shape"),
        (input_shape, "3,0,2", "no shape"),
        (input_shape, "", "no shape"),
    ],
)
def test_what_is_refused(kind: Callable[[str], object], text: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        kind(text)
