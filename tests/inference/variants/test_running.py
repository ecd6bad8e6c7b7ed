"""How far a variant's process may be from the one that built it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.variants.running import compare_reload, relative_difference

BUILT = np.array([[1.0, -2.0]], np.float32)


@pytest.mark.parametrize(
    ("device", "runtime", "off_by", "allowed"),
    [
        ("cpu", "onnxruntime", 5e-4, True),
        ("cpu", "onnxruntime", 5e-3, False),
        ("cpu", "onnxruntime", float("nan"), False),
        ("cpu", "onnxruntime-int8", 5e-3, True),
        # A GPU's kernels compute float32 in TF32 or not, and a fresh process may choose others.
        ("cuda", "onnxruntime", 5e-3, True),
        ("cuda", "onnxruntime", 5e-2, False),
    ],
)
def test_the_tolerance_follows_the_arithmetic(device: str, runtime: str, off_by: float, allowed: bool) -> None:
    artefact: Any = SimpleNamespace(device=device, runtime=runtime)
    if allowed:
        assert compare_reload(BUILT * (1 + off_by), BUILT, artefact).max_difference == pytest.approx(off_by, rel=1e-3)
    else:
        with pytest.raises(VariantError, match="in a fresh process its outputs differ"):
            compare_reload(BUILT * np.float32(1 + off_by), BUILT, artefact)


def test_the_difference_is_relative_to_the_largest_output() -> None:
    assert relative_difference(BUILT + 0.5, BUILT) == 0.25
    assert relative_difference(BUILT[:, :1], BUILT) == float("inf")
    assert relative_difference(0 * BUILT, 0 * BUILT) == 0
    assert relative_difference(BUILT, 0 * BUILT) == float("inf")
