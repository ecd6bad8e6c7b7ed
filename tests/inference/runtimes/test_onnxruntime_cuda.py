"""ONNX Runtime on a GPU, with a stand-in for the package: a session gets its options, and runs nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_perf.inference.runtimes.onnxruntime import load_session


def test_a_variant_named_float32_does_not_multiply_in_tf32(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    class Session:
        def __init__(self, path: Path, options: Any, providers: list[Any]) -> None:
            asked.append(providers[0])

        def get_providers(self) -> list[str]:
            return ["CUDAExecutionProvider"]

        def get_outputs(self) -> list[Any]:
            return [SimpleNamespace(shape=["batch", 10])]

    stand_in = SimpleNamespace(
        InferenceSession=Session,
        SessionOptions=SimpleNamespace,
        ExecutionMode=SimpleNamespace(ORT_SEQUENTIAL=0),
        get_available_providers=lambda: ["CUDAExecutionProvider"],
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", stand_in)
    load_session(tmp_path / "model.onnx", torch.device("cuda", 1), 1)
    (provider, options) = asked[0]
    assert provider == "CUDAExecutionProvider"
    # Its default is 1 (onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html#use_tf32).
    assert options == {"device_id": 1, "use_tf32": 0}
