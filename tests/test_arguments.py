"""Option types say what they want; none of their errors names a function."""

import argparse
import os
from collections.abc import Callable

import pytest

from lightning_perf.arguments import at_least, input_shape, positive, share, share_or_zero, thread_count


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (at_least(0), "0", 0),
        (at_least(0, 65535), "65535", 65535),
        (positive, "1e-3", 1e-3),
        (share, "0.5", 0.5),
        (share_or_zero, "0", 0.0),
        (share_or_zero, "0.01", 0.01),
        (thread_count, "3", 3),
        (thread_count, "all", len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
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
        (at_least(1), "0", "'0' is not a whole number of 1 or more"),
        (at_least(1), "many", "'many' is not a whole number of 1 or more"),
        (at_least(0, 65535), "65536", "'65536' is not a whole number from 0 to 65535"),
        (positive, "0", "'0' is not a positive number"),
        (positive, "inf", "'inf' is not a positive number"),
        (positive, "soon", "'soon' is not a positive number"),
        (share, "1", "'1' is not a share: give a number above 0 and below 1, e.g. 0.01 for 1 %"),
        (share, "nan", "'nan' is not a share"),
        (share, "half", "'half' is not a share"),
        (share_or_zero, "1", "'1' is not a share"),
        (thread_count, "0", "'0' is not a whole number of 1 or more, or 'all'"),
        (input_shape, "3,x", "'3,x' is not a shape: give positive whole numbers, e.g. 3,224,224"),
        (input_shape, "3,0,2", "not a shape"),
        (input_shape, "", "not a shape"),
    ],
)
def test_what_is_refused(kind: Callable[[str], object], text: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        kind(text)
