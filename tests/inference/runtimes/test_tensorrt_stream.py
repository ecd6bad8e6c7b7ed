"""The stream that a TensorRT engine runs on, with a TensorRT and a CUDA that only note what is asked of them."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.runtimes.tensorrt import MAX_BATCH, load_engine

DEFAULT, OWN = 0, 7
"""CUDA's handle of the legacy default stream, and of the engine's."""


class Cuda:
    """Streams, and an engine that gives as many rows as it takes, with two values each."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, int, int]] = []
        self.works = True
        self.rows = 0

    def stream(self, handle: int) -> SimpleNamespace:
        wait = lambda other: self.notes.append(("wait", handle, other.cuda_stream))  # noqa: E731
        return SimpleNamespace(cuda_stream=handle, wait_stream=wait)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> None:
        self.rows = shape[0]

    def get_tensor_shape(self, name: str) -> tuple[int, int]:
        return self.rows, 2

    def set_tensor_address(self, name: str, address: int) -> None:
        assert address

    def execute_async_v3(self, handle: int) -> bool:
        self.notes.append(("run", handle, self.rows))
        return self.works


def test_an_engine_never_runs_on_the_default_stream(monkeypatch, tmp_path):
    cuda = Cuda()
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: cuda.stream(DEFAULT))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device=None: cuda.stream(OWN))
    levels = []
    loaded = SimpleNamespace(create_execution_context=lambda: cuda)
    module = SimpleNamespace(
        Logger=type("Logger", (), {"WARNING": "warning", "__init__": lambda self, level: levels.append(level)}),
        Runtime=lambda logger: SimpleNamespace(deserialize_cuda_engine=lambda plan: loaded if plan else None),
        __version__="11.0",
    )
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    path = tmp_path / "model.engine"
    path.touch()
    with pytest.raises(VariantError, match="another version of TensorRT than 11"):
        load_engine(path, torch.device("cpu"), torch.float32)
    path.write_bytes(b"plan")
    call = load_engine(path, torch.device("cpu"), torch.float32)
    assert levels == ["warning", "warning"]
    assert call(torch.zeros(3, 4)).shape == (3, 2)
    # The engine's stream waits for the inputs, and the caller's for the outputs.
    assert cuda.notes == [("wait", OWN, DEFAULT), ("run", OWN, 3), ("wait", DEFAULT, OWN)]
    cuda.notes.clear()
    assert call(torch.zeros(MAX_BATCH + 1, 4)).shape == (MAX_BATCH + 1, 2)  # in parts
    assert [note for note in cuda.notes if note[0] == "run"] == [("run", OWN, MAX_BATCH), ("run", OWN, 1)]
    assert cuda.notes[-1] == ("wait", DEFAULT, OWN)
    cuda.works = False
    with pytest.raises(VariantError, match="could not run"):
        call(torch.zeros(1, 4))
