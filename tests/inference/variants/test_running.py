"""What a variant's process may give otherwise than the one that built it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.measurement.messages import Predict, Predicted, Ready
from lightning_perf.inference.variants import running as running_module
from lightning_perf.inference.variants.running import Running
from lightning_perf.workers.channel import Message


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, runtime: str, off_by: float, allowed: bool
) -> None:
    outputs = tmp_path / "outputs.npy"
    expected = np.array([[1.0, -2.0]], np.float32)
    np.save(outputs, expected)

    class Worker:
        """Predicts something else than the builder did."""

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def send(self, order: Predict) -> None:
            np.save(order.outputs, expected * (1 + off_by))

        def receive(self, kind: type[Message], *, timeout_s: float) -> Message:
            return Ready(1.0, 1.0, None, None) if kind is Ready else Predicted()

    monkeypatch.setattr(running_module, "WorkerProcess", Worker)
    artefact = SimpleNamespace(device=device, runtime=runtime)
    built: Any = SimpleNamespace(folder=tmp_path, artefact=artefact, outputs=outputs)
    running = Running(built, tmp_path / "inputs.npy", device, threads=1, timeout_s=1.0)
    if allowed:
        assert running.check_reload().max_difference == pytest.approx(off_by, rel=1e-3)
    else:
        with pytest.raises(VariantError, match="in a fresh process its outputs differ"):
            running.check_reload()
