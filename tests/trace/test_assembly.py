"""Events sorted into tables, and their values turned into columns."""

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.trace.assembly import Destination, destination, device_kind, is_annotation_name
from lightning_perf.trace.column_builders import UNREADABLE_NS, InexactTimeError, decimal_ns, nanoseconds
from lightning_perf.trace.columns import DeviceKind


@pytest.mark.parametrize(
    ("name", "direction", "kind"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "", DeviceKind.H2D),
        ("Memcpy DtoH (Device -> Pinned)", "", DeviceKind.D2H),
        ("Memcpy DtoD (Device -> Device)", "", DeviceKind.D2D),
        ("Memcpy PtoP (Device -> Device)", "", DeviceKind.P2P),
        ("CopyHostToDevice", "", DeviceKind.H2D),
        ("copy", '"DtoH"', DeviceKind.D2H),
        ("copy", "", DeviceKind.COPY),
        ("Memcpy HtoH (Host -> Host)", "", DeviceKind.COPY),
        ("Memcpy M2D (MEMORY -> DEVICE)", "", DeviceKind.H2D),
        ("Memcpy D2M (DEVICE -> MEMORY)", "", DeviceKind.D2H),
    ],
)
def test_copies(name: str, direction: str, kind: DeviceKind) -> None:
    assert device_kind(Destination.COPY, name, direction) is kind


def test_categories_old_and_new() -> None:
    assert destination("Kernel") is destination("kernel") is Destination.KERNEL
    assert destination("Runtime") is destination("cuda_driver") is Destination.RUNTIME
    assert destination("Operator") is destination("cpu_op") is Destination.OPERATOR
    assert destination("gpu_user_annotation") is destination("") is None


def test_annotations_among_old_operators() -> None:
    assert is_annotation_name("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    assert is_annotation_name("Optimizer.step#SGD.step")
    assert not is_annotation_name("aten::mm")


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
