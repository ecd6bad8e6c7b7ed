"""The notes of a window: of a GPU, with stand-ins for it, of its first batch, its tokens and page faults."""

from __future__ import annotations

import json
import random
from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lightning_perf
from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.recording.window_notes import (
    LAST_STEPS,
    MAX_OBJECTS,
    MOST_BATCHES,
    PageFaultCounter,
    TokenCounter,
    WindowNotes,
    count_contents,
    product_parameters,
)
from lightning_perf.callbacks.steps.batch_parts import IGNORED_LABEL
from lightning_perf.callbacks.steps.core_use import CoreUse
from lightning_perf.callbacks.steps.fit_state import FitContext, FitState
from lightning_perf.run_files.steps import WARMUP_STEPS
from lightning_perf.trace.description import BATCH_KEY, Batch
from recipes.tinylm.model import GPT
from tests.callbacks.training import context
from tests.support.trace_builder import TraceBuilder


def window_notes(fit: FitContext) -> WindowNotes:
    return WindowNotes(fit, CoreUse(fit.state), {})


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
    noted = {key: json.loads(note) for key, note in window_notes(context(errors=errors, device="cuda")).before_window()}
    assert errors.messages == []
    path = TraceBuilder(**noted).step(1, 0, 100).op("aten::mm", 0, 90).write(tmp_path / "trace.json")
    (note,) = [note for note in lightning_perf.analyze(path).notes if "CUPTI" in note]
    assert named in note
    assert "KINETO_LOG_LEVEL=0" in note


def test_the_first_batch_of_each_window_is_counted() -> None:
    state = FitState()
    notes = window_notes(context(state=state))
    notes.add_batch([torch.zeros(1)])
    assert dict(notes.of_window(1)) == {}
    state.profiling = True
    for size in (1, 2):
        notes.on_warm_up()
        for batch in (None, [torch.zeros(1)] * size, [torch.zeros(1)] * 9):
            notes.add_batch(batch)
        assert json.loads(dict(notes.of_window(1))[BATCH_KEY])["tensors"] == size


def sequences(rows: int, length: int, real: int) -> dict[str, torch.Tensor]:
    labels = torch.full((rows, length), IGNORED_LABEL)
    labels[:, :real] = 1
    return {"input_ids": torch.ones(rows, length, dtype=torch.int64), "labels": labels}


class Loop:
    def __init__(self) -> None:
        self.state = FitState()
        self.counter = TokenCounter(context(state=self.state, product_parameters=lambda: 10))

    def step(self, *batches: Any, profiling: bool = True, recording: bool = True) -> None:
        self.state.profiling, self.state.recording = profiling, recording
        self.counter.on_step_start()
        for each in batches:
            self.counter.add_batch(each)
        self.counter.on_step_end()


def test_recorded_steps_count_and_padding_also_in_the_warm_up() -> None:
    loop = Loop()
    loop.step(sequences(2, 100, 1), profiling=False, recording=False)
    loop.step(sequences(2, 10, 5), recording=False)
    loop.step(sequences(2, 8, 8), sequences(4, 4, 4))
    loop.step(sequences(2, 6, 6))
    assert loop.counter.facts() == {
        "parameters": 10,
        "steps": 2,
        "tokens": 16 + 16 + 12,
        "counted": 20 + 16 + 16 + 12,
        "padding": 10,
        "beyond_longest": 10,
    }
    loop.counter.start()
    assert loop.counter.facts() is None


def test_a_step_that_is_cut_off_or_has_other_batches_does_not_count() -> None:
    loop = Loop()
    loop.step(sequences(2, 8, 8))
    loop.step(sequences(2, 8, 8), (torch.zeros(3, 3),))
    loop.counter.on_step_start()
    loop.counter.add_batch(sequences(2, 8, 8))  # the step is dropped
    facts = loop.counter.facts()
    assert facts is not None
    assert (facts["steps"], facts["tokens"]) == (1, 16)


def test_labels_that_are_never_ignored_are_no_evidence_of_a_lack_of_padding() -> None:
    loop = Loop()
    loop.step(sequences(2, 8, 8))
    facts = loop.counter.facts()
    assert facts is not None
    assert "padding" not in facts
    masked = Loop()
    masked.step({"input_ids": torch.ones(2, 4, dtype=torch.int64), "attention_mask": torch.ones(2, 4)})
    facts = masked.counter.facts()
    assert facts is not None
    assert facts["padding"] == 0
    assert facts["counted"] == 8


def test_few_batches_are_kept_and_odd_ones_are_no_error() -> None:
    loop = Loop()
    loop.step(*[sequences(1, 4, 2) for _ in range(MOST_BATCHES + 5)])
    endless: list[Any] = []
    endless.append(endless)
    loop.step(endless)
    facts = loop.counter.facts()
    assert facts is not None
    assert facts["counted"] == 4 * MOST_BATCHES


def test_parameters_of_products_include_a_tied_table_but_no_other() -> None:
    layers, width, vocabulary, context = 2, 8, 32, 16
    blocks = 12 * width**2 + 13 * width  # matrices, biases and the parameters of two norms
    tied = GPT(vocabulary, context, layers=layers, heads=2, width=width)
    assert product_parameters(tied) == layers * blocks + 2 * width + vocabulary * width
    assert product_parameters(nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 3, bias=False))) == 12
    assert product_parameters(nn.LazyLinear(4)) == 0


Pair = namedtuple("Pair", "first second")


@dataclass
class Graph:
    nodes: torch.Tensor
    edges: Any = None


class Untouchable(Sequence[Any]):
    """Augments when it is read, and fails."""

    def __init__(self) -> None:
        self.held = torch.zeros(4)

    def _touched(self, *_: Any) -> Any:
        random.random()
        raise AssertionError("touched")

    __getitem__ = __len__ = __iter__ = __getattr__ = __eq__ = __bool__ = __reduce_ex__ = _touched
    __hash__ = _touched


class Labels(torch.Tensor):
    """A tensor subclass that lets no function of torch see it."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise AssertionError("touched")


class Items(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("touched")


def cyclic() -> list[Any]:
    batch: list[Any] = [torch.zeros(2)]
    batch.append(batch)
    return batch


@pytest.mark.parametrize(
    ("batch", "tensors", "tensor_bytes", "objects", "object_bytes"),
    [
        (torch.zeros(3, dtype=torch.float64), 1, 24, 0, 0),
        ([torch.zeros(2), torch.zeros(3)], 2, 20, 1, 0),
        ({"a": torch.zeros(1), "bc": [1, 2.5, None]}, 1, 4, 7, 3),
        (OrderedDict(a=Pair(torch.zeros(1), "xyz")), 1, 4, 4, 4),
        (Graph(torch.zeros(2), {torch.zeros(1)}), 2, 12, 2, 0),
        (torch.zeros(1).expand(1000), 1, 4000, 0, 0),
        ([np.zeros((2, 3), dtype=np.float32), b"ab"], 0, 0, 3, 26),
        (torch.zeros(4).as_subclass(Labels), 1, 16, 0, 0),
        (Items([torch.zeros(1)]), 1, 4, 1, 0),
        (cyclic(), 1, 8, 2, 0),
        ([torch.nn.Linear(2, 2), print, Graph], 0, 0, 4, 0),
    ],
)
def test_counts(batch: Any, tensors: int, tensor_bytes: int, objects: int, object_bytes: int) -> None:
    assert count_contents(batch) == Batch(tensors, tensor_bytes, objects, object_bytes)


def test_a_batch_that_augments_when_it_is_read_is_not_read() -> None:
    before = random.getstate()
    assert count_contents([Untouchable()]) == Batch(tensors=1, tensor_bytes=16, objects=2, object_bytes=0)
    assert random.getstate() == before


def test_a_generator_stays_whole_and_a_large_batch_is_counted_in_part() -> None:
    batch = (torch.zeros(1) for _ in range(3))
    assert count_contents([batch]).objects == 2
    assert len(list(batch)) == 3
    counted = count_contents([torch.zeros(1) for _ in range(2 * MAX_OBJECTS)])
    assert not counted.complete
    assert counted.tensors <= MAX_OBJECTS


class Faults:
    """Steps with page faults, and many more between two steps."""

    def __init__(self) -> None:
        self.faults: int | None = 1_000
        self.state = FitState(step=WARMUP_STEPS)
        self.counter = PageFaultCounter(self.state, count=lambda: self.faults)

    def take(self, faults: int) -> None:
        if self.faults is not None:
            self.faults += faults

    def step(self, faults: int, *, cut: bool = False) -> None:
        self.counter.on_step_start()
        self.take(faults)
        if cut:
            self.counter.on_step_cut()
        self.counter.on_step_end()
        self.take(10_000)


def test_the_median_of_the_last_steps() -> None:
    run = Faults()
    for faults in (90_000, 7):
        run.step(faults)
    assert run.counter.median_per_step() is None
    run.step(9)
    assert run.counter.median_per_step() == 9
    for _ in range(LAST_STEPS):
        run.step(3)
    assert run.counter.median_per_step() == 3


@pytest.mark.parametrize(
    ("first", "faults", "median"),
    [
        # Measured: 11,570 faults were named, of which the steps after the compilation had one.
        (0, [301_000, 48_000, 11_570, 11_570, 11_570, 1, 1, 1], 1),
        (0, [301_000, 48_000, 11_570, 11_570, 1, 1], None),
        (WARMUP_STEPS, [11_570, 11_570, 11_570, 11_570, 2, 1, 1], 1),
    ],
    ids=["compiled", "recorded before the warm-up ended", "a warm-up longer than usual"],
)
def test_the_faults_of_a_warm_up_are_not_named(first: int, faults: list[int], median: float | None) -> None:
    run = Faults()
    for run.state.step, each in enumerate(faults, first):
        run.step(each)
    assert run.counter.median_per_step() == median


@pytest.mark.parametrize("counted", [True, False])
def test_neither_profiled_steps_nor_those_that_are_cut_off_count(counted: bool) -> None:
    run = Faults()
    if not counted:  # by the system
        run.faults = None
    for faults in (5, 6, 7):
        run.step(faults)
        run.step(500, cut=True)
        run.state.profiling = True
        run.step(500)
        run.state.profiling = False
    assert run.counter.median_per_step() == (6 if counted else None)
