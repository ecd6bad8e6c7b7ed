"""What a variant's process may give otherwise than the one that built it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.variants.running import Running


@pytest.mark.parametrize(
    ("device", "runtime", "off_by", "allowed"),
    [
        ("cpu", "onnxruntime", 5e-4, True),
        ("cpu", "onnxruntime", 5e-3, False),
        ("cpu", "onnxruntime-int8", 5e-3, True),
        # A GPU's kernels compute float32 in TF32 or not, and a fresh process may choose others.
        ("cuda", "onnxruntime", 5e-3, True),
        ("cuda", "onnxruntime", 5e-2, False),
    ],
)
def test_how_far_a_fresh_process_may_be_from_the_builder(
    tmp_path: Path, device: str, runtime: str, off_by: float, allowed: bool
) -> None:
    outputs = tmp_path / "outputs.npy"
    expected = np.array([[1.0, -2.0]], np.float32)
    np.save(outputs, expected)
    running: Any = Running.__new__(Running)
    running._built = SimpleNamespace(artefact=SimpleNamespace(device=device, runtime=runtime), outputs=outputs)
    running._inputs = tmp_path / "inputs.npy"
    running.predict = lambda inputs: expected * (1 + off_by)
    if allowed:
        assert running.check_reload().max_difference == pytest.approx(off_by, rel=1e-3)
    else:
        with pytest.raises(VariantError, match="in a fresh process it gives other outputs"):
            running.check_reload()
