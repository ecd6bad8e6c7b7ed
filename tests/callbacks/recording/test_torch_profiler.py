"""The watch over torch's one recorder, and what is passed to its export."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd.profiler import profile

from lightning_perf.callbacks.recording.torch_profiler import RecorderWatch, export_options, recorder_is_taken
from lightning_perf.run_files.traces import export_trace
from lightning_perf.trace.reader import read_trace


def record() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        pass


def test_profilers_are_heard_before_they_prepare() -> None:
    original = profile._prepare_trace
    heard: list[bool] = []
    watch = RecorderWatch(lambda: heard.append(recorder_is_taken()))
    record()
    record()
    assert heard == [False, False]
    watch.remove()
    assert profile._prepare_trace is original


def test_nothing_is_heard_after_removal() -> None:
    original = profile._prepare_trace
    heard: list[None] = []
    watch = RecorderWatch(lambda: heard.append(None))
    watch.remove()
    watch.remove()
    record()
    assert heard == []
    assert profile._prepare_trace is original


def test_removal_under_another_wrapper_leaves_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "_prepare_trace", profile._prepare_trace)
    heard: list[str] = []
    below = RecorderWatch(lambda: heard.append("below"))
    above = RecorderWatch(lambda: heard.append("above"))
    below.remove()
    record()
    assert heard == ["above"]
    above.remove()


class Recorded:
    """A profiler of torch 2.15."""

    def export_chrome_trace(self, path: str, cuda_graph_annotations: Any = None) -> None:
        pass


class Earlier:
    def export_chrome_trace(self, path: str) -> None:
        pass


def test_names_of_graph_kernels_are_exported_where_torch_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    named: dict[int, Any] = {}
    recorded: Any = Recorded()
    earlier: Any = Earlier()
    module = SimpleNamespace(get_kernel_annotations=lambda: named)
    monkeypatch.setattr(torch.cuda, "graph_annotations", module, raising=False)
    assert export_options(recorded) == {}, "torch's faster export stays"
    named[7] = [{"name": "attention"}]
    assert export_options(recorded) == {"cuda_graph_annotations": named}
    assert export_options(earlier) == {}
    monkeypatch.delattr(torch.cuda, "graph_annotations")
    assert export_options(recorded) == {}


def test_the_export_with_names_is_the_same_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch exports events in Python then. The kernels of graphs themselves need a GPU."""
    module = pytest.importorskip("torch.cuda.graph_annotations")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        torch.ones(8, 8) @ torch.ones(8, 8)
    if not recorded.profiler:
        pytest.skip("no recorder")
    plain = read_trace(export_trace(recorded, tmp_path, 0, 1))
    monkeypatch.setattr(module, "get_kernel_annotations", lambda: {7: [{"name": "attention"}]})
    options = export_options(recorded)
    assert options
    named = read_trace(export_trace(recorded, tmp_path, 0, 2, **options))
    operators = [plain.names[code] for code in plain.operators.name]
    assert "aten::mm" in operators
    assert [named.names[code] for code in named.operators.name] == operators
