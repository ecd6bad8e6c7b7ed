"""The notes of a window: of a GPU, with stand-ins for it, and of its first batch."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import lightning_perf
from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.recording.window_notes import WindowNotes
from lightning_perf.callbacks.steps.core_use import CoreUse
from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.trace.description import BATCH_KEY
from tests.support.trace_builder import TraceBuilder


def window_notes(state: FitState, device_type: str, errors: ErrorReporter) -> WindowNotes:
    return WindowNotes(
        state, device_type=device_type, errors=errors, core_use=CoreUse(state), loader={}, parameters=lambda: None
    )


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"NSYS_PROFILING_SESSION_ID": "1"}, "run without Nsight Systems (nsys)."),
        ({"CUDA_INJECTION64_PATH": "/opt/tool/libscorep_cuda.so"}, "run without libscorep_cuda.so."),
        ({}, "run without nsys, ncu and other tools."),
    ],
)
def test_a_tool_that_has_taken_the_recorder_of_the_gpu_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], named: str
) -> None:
    for name in ("NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: SimpleNamespace(uuid="0000-a"))
    errors = ErrorReporter()
    noted = {key: json.loads(note) for key, note in window_notes(FitState(), "cuda", errors).before_window()}
    assert errors.messages == []
    path = TraceBuilder(**noted).step(1, 0, 100).op("aten::mm", 0, 90).write(tmp_path / "trace.json")
    (note,) = [note for note in lightning_perf.analyze(path).notes if "CUPTI" in note]
    assert named in note
    assert "KINETO_LOG_LEVEL=0" in note


def test_the_first_batch_of_each_window_is_counted() -> None:
    state = FitState()
    notes = window_notes(state, "cpu", ErrorReporter())
    notes.add_batch([torch.zeros(1)])
    assert dict(notes.of_window(1)) == {}
    state.profiling = True
    for size in (1, 2):
        notes.on_warm_up()
        for batch in (None, [torch.zeros(1)] * size, [torch.zeros(1)] * 9):
            notes.add_batch(batch)
        assert json.loads(dict(notes.of_window(1))[BATCH_KEY])["tensors"] == size
