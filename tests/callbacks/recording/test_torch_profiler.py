"""The watch over torch's one recorder."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.profiler import profile

from lightning_perf.callbacks.recording.torch_profiler import RecorderWatch, recorder_is_taken


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
