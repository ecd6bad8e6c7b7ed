"""`PerfCallback` on real Trainers: which steps are recorded, and what stands in the traces."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from lightning_perf import PerfCallback, analyze, read_trace
from lightning_perf.report.document import PerfReport
from tests.callbacks.perf_training import assert_nested, fit, quick
from tests.callbacks.training import (
    PACKAGES,
    Points,
    events,
    hooked,
    loader,
    make_module,
    make_trainer,
    marks,
    package,
    phases_by_step,
    samples,
    step_marks,
    step_numbers,
    trace_files,
)

STEP = ["fetch", "transfer", "forward", "optimizer", "backward", "optimizer"]
"""The ranges of a step in automatic optimization: gradients are zeroed between forward and backward."""


@pytest.mark.parametrize("name", PACKAGES)
def test_marks_span_whole_steps_with_their_phases_and_all_operators_inside(tmp_path: Path, name: str) -> None:
    fit(tmp_path, name=name, val=2)
    (file,) = trace_files(tmp_path)
    assert file.parent == tmp_path / "perf"
    assert step_numbers(tmp_path) == [[1, 2]]
    assert phases_by_step(file) == [STEP, STEP]
    first, second = step_marks(file)
    assert first.end <= second.start
    operators = [e for e in events(file) if e["cat"] == "cpu_op"]
    assert all(any(s.start <= e["ts"] and e["ts"] + e["dur"] <= s.end for s in (first, second)) for e in operators)
    for step in (first, second):
        ranges = [inner for inner in marks(file, "perf::") if step.holds(inner)]
        assert all(a.end <= b.start for a, b in pairwise(ranges)), "phases overlap"
        inside = {r.name: [e["name"] for e in events(file) if r.start <= e["ts"] < r.end] for r in ranges}
        assert "aten::cross_entropy_loss" in inside["perf::forward"]
        assert any("Backward0" in op for op in inside["perf::backward"])
        assert "aten::add_" in inside["perf::optimizer"], (
            "the optimizer's own mark holds the whole closure, ours does not"
        )
        assert any("DataLoader" in op for op in inside["perf::fetch"])


@pytest.mark.parametrize(
    "options", [{}, {"accumulate_grad_batches": 2}, {"gradient_clip_val": 1.0}, {"precision": "bf16-mixed"}], ids=str
)
def test_ranges_nest(tmp_path: Path, options: dict[str, Any]) -> None:
    """Viewers drop a range that ends after the one it began in: `optimizer.step` runs the closure inside its own."""
    fit(tmp_path, **options)
    (file,) = trace_files(tmp_path)
    assert_nested(file)


@pytest.mark.parametrize(
    ("batches", "schedule", "options", "numbers"),
    [
        (12, {"wait": 1, "warmup": 1, "active": 2, "repeat": 2}, {}, [[3, 4], [7, 8]]),
        (12, {"wait": 1, "warmup": 1, "active": 2, "repeat": 2}, {"name": PACKAGES[1]}, [[3, 4], [7, 8]]),
        (9, {"wait": 1, "active": 2, "repeat": 0}, {}, [[2, 3], [5, 6], [8]]),
        (6, {"skip_first": 0, "active": 2, "repeat": 2}, {}, [[0, 1], [2, 3]]),
        (20, {"active": 10}, {"max_steps": 4, "max_epochs": -1}, [[1, 2, 3]]),
        # The defaults are shortened for a short run, and given numbers are not.
        (4, {"skip_first": None, "warmup": None, "active": 5}, {}, [[1, 2, 3]]),
        (4, {"skip_first": 10}, {}, []),
    ],
    ids=["cycles", "the other package", "for ever", "no rest between", "max_steps", "defaults", "too short"],
)
def test_steps_of_the_schedule_are_recorded(
    tmp_path: Path, batches: int, schedule: dict[str, Any], options: dict[str, Any], numbers: list[list[int]]
) -> None:
    trainer = fit(tmp_path, batches, callback=quick(**schedule), **options)
    assert step_numbers(tmp_path) == numbers
    assert len(samples(tmp_path)) == trainer.global_step


def test_validation_between_steps_is_in_no_trace(tmp_path: Path) -> None:
    trainer = fit(tmp_path, 8, val=2, val_check_interval=2, callback=quick(active=4), num_sanity_val_steps=2)
    assert step_numbers(tmp_path) == [[1], [2, 3], [4]], "what validation cuts off is recorded into the next file"
    for file in trace_files(tmp_path):
        assert not [e for e in events(file) if e["name"] == "aten::cumsum"]
        assert all(step.finished for step in step_marks(file))
    assert [s["step"] for s in samples(tmp_path)] == list(range(8))
    assert trainer.global_step == 8


def test_validation_within_a_step_leaves_it_unfinished(tmp_path: Path) -> None:
    fit(tmp_path, 8, val=1, val_check_interval=3, accumulate_grad_batches=2, callback=quick(skip_first=0, active=3))
    assert step_numbers(tmp_path) == [[0], [2]]
    first, second = trace_files(tmp_path)
    assert [read_trace(file).steps.complete.tolist() for file in (first, second)] == [[True, False], [True]]
    assert [(m.name, m.finished) for m in step_marks(first)] == [("ProfilerStep#0", True), ("ProfilerStep#1", False)]
    assert [m.name for m in step_marks(second)] == ["ProfilerStep#2"]
    assert not [e for file in (first, second) for e in events(file) if e["name"] == "aten::cumsum"]


def test_the_end_of_an_epoch_is_in_no_trace(tmp_path: Path) -> None:
    def epoch_end(self: Any) -> None:
        torch.arange(7).cumsum(0)

    fit(tmp_path, 3, max_epochs=3, module=make_module(on_train_epoch_end=epoch_end), callback=quick(active=5))
    assert step_numbers(tmp_path) == [[1, 2], [3, 4, 5]]
    assert not [e for file in trace_files(tmp_path) for e in events(file) if e["name"] == "aten::cumsum"]


def test_callbacks_logging_and_checkpoints_belong_to_the_step(tmp_path: Path) -> None:
    after = hooked(on_train_batch_end=lambda *_: torch.arange(7).cumprod(0))
    checkpoint = package(PACKAGES[0]).callbacks.ModelCheckpoint(tmp_path / "ckpt", every_n_train_steps=1)
    fit(tmp_path, callbacks=[after, checkpoint], enable_checkpointing=True)
    (file,) = trace_files(tmp_path)
    for step, phases in zip(step_marks(file), phases_by_step(file), strict=True):
        assert phases == [*STEP, "checkpoint"]
        assert [e for e in events(file) if e["name"] == "aten::cumprod" and step.start <= e["ts"] < step.end]


def test_no_training_batches(tmp_path: Path) -> None:
    fit(tmp_path, limit_train_batches=0)
    assert not (tmp_path / "perf").exists()


@pytest.mark.parametrize("profiler", ["simple", "advanced"])
def test_the_trainers_timing_profilers_go_on(tmp_path: Path, profiler: str) -> None:
    trainer = fit(tmp_path, profiler=profiler)
    assert step_numbers(tmp_path) == [[1, 2]]
    if profiler == "simple":
        assert len(trainer.profiler.recorded_durations["run_training_batch"]) == 8


def test_slow_data_is_seen_as_data_wait(tmp_path: Path) -> None:
    fit(tmp_path, DataLoader(Points(12, lambda _: torch.randn(400, 400) @ torch.randn(400, 400)), 2))
    (file,) = trace_files(tmp_path)
    recorded = {row["step"]: row for row in samples(tmp_path) if row["profiled"]}
    differences = []
    for step in step_marks(file):
        fetch_us = sum(m.end - m.start for m in marks(file, "perf::fetch") if step.holds(m))
        row = recorded[int(step.name.split("#")[1])]
        wait_us, step_us = row["data_wait_ns"] / 1000, row["step_ns"] / 1000
        # Two clocks of the same things: the range lies around the timed fetch, the mark around the timed step. A busy
        # machine may interrupt the process between the two clocks.
        assert wait_us <= fetch_us + 500
        assert step_us <= step.end - step.start + 500
        differences.append(max(1 - wait_us / fetch_us, 1 - step_us / (step.end - step.start)))
    assert min(differences) < 0.2


def test_a_budget_leaves_out_further_windows(tmp_path: Path) -> None:
    callback = PerfCallback(skip_first=1, warmup=1, active=2, repeat=3, max_overhead=0.0, report="none")
    make_trainer(tmp_path, callback).fit(make_module(), loader(14))
    assert step_numbers(tmp_path) == [[2, 3]]
    report = analyze(trace_files(tmp_path)[0].parent)
    assert report.trust is not None
    assert [each.window.recorded_steps for each in report.trust.windows] == [2]
    saved = PerfReport.from_json((trace_files(tmp_path)[0].parent / "report.json").read_bytes())
    assert "max_overhead is used up: 2 further windows of the profiler were left out." in saved.notes
    assert saved.trust is not None
    assert saved.trust.analysis_ns is not None


def test_step_samples_and_what_the_profiler_did_are_saved_for_a_later_analysis(tmp_path: Path) -> None:
    callback = PerfCallback(skip_first=9, warmup=2, active=3, report="none")
    make_trainer(tmp_path, callback).fit(make_module(), loader(30))
    (file,) = trace_files(tmp_path)
    trust = analyze(file.parent).trust
    assert trust is not None
    (each,) = trust.windows
    assert (each.window.first_step, each.window.last_step, each.window.recorded_steps) == (9, 13, 3)
    assert each.window.trace_bytes == file.stat().st_size
    rows = samples(tmp_path)
    assert [row["step"] for row in rows] == list(range(30))
    assert [row["step"] for row in rows if row["profiled"]] == list(range(9, 14))
    assert all(0 < row["data_wait_ns"] < row["step_ns"] for row in rows)
    assert all(row["device_ns"] is None and row["samples"] == 2 for row in rows)
