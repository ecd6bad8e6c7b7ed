from __future__ import annotations

import pytest

from lightning_perf.trace.assembly import Destination, destination, device_kind, is_annotation_name
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
