"""The stream that a TensorRT engine runs on, with a TensorRT and a CUDA that only note what is asked of them."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.runtimes.tensorrt import MAX_BATCH, load_engine

DEFAULT = 0
"""CUDA's handle of the legacy default stream."""


class Stream:
    def __init__(self, handle: int, notes: list[tuple[str, int, int]]) -> None:
        self.cuda_stream = handle
        self.notes = notes

    def wait_stream(self, other: Stream) -> None:
        self.notes.append(("wait", self.cuda_stream, other.cuda_stream))


class Context:
    """An engine that gives as many rows as it takes, with two values each."""

    def __init__(self, notes: list[tuple[str, int, int]], works: bool) -> None:
        self.notes = notes
        self.works = works
        self.rows = 0

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> None:
        self.rows = shape[0]

    def get_tensor_shape(self, name: str) -> tuple[int, int]:
        return self.rows, 2

    def set_tensor_address(self, name: str, address: int) -> None:
        assert address

    def execute_async_v3(self, handle: int) -> bool:
        self.notes.append(("run", handle, self.rows))
        return self.works


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    noted: list[tuple[str, int, int]] = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream(DEFAULT, noted))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device=None: Stream(7, noted))
    return noted


def engine(
    notes: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch, folder: Path, works: bool = True
) -> tuple[object, list[str]]:
    levels: list[str] = []

    class Logger:
        ERROR, WARNING = "error", "warning"

        def __init__(self, level: str) -> None:
            levels.append(level)

    loaded = SimpleNamespace(create_execution_context=lambda: Context(notes, works))
    runtime = SimpleNamespace(deserialize_cuda_engine=lambda plan: loaded)
    module = SimpleNamespace(Logger=Logger, Runtime=lambda logger: runtime, __version__="11.0")
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    path = folder / "model.engine"
    path.write_bytes(b"plan")
    return load_engine(path, torch.device("cpu"), torch.float32), levels


def test_an_engine_never_runs_on_the_default_stream(
    notes: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call, levels = engine(notes, monkeypatch, tmp_path)
    assert callable(call)
    assert call(torch.zeros(3, 4)).shape == (3, 2)
    # The engine's stream waits for the inputs, and the caller's for the outputs.
    assert notes == [("wait", 7, DEFAULT), ("run", 7, 3), ("wait", DEFAULT, 7)]
    assert levels == ["warning"]


def test_every_part_of_a_large_batch_is_waited_for(
    notes: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call, _ = engine(notes, monkeypatch, tmp_path)
    assert callable(call)
    assert call(torch.zeros(MAX_BATCH + 1, 4)).shape == (MAX_BATCH + 1, 2)
    assert [note for note in notes if note[0] == "run"] == [("run", 7, MAX_BATCH), ("run", 7, 1)]
    assert notes[-1] == ("wait", DEFAULT, 7)


def test_an_engine_that_fails_says_so(
    notes: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call, _ = engine(notes, monkeypatch, tmp_path, works=False)
    assert callable(call)
    with pytest.raises(VariantError, match="could not run"):
        call(torch.zeros(1, 4))
