"""The memory of a fit over time: its samples, and the count of tensors when it has grown."""

from __future__ import annotations

import collections
import itertools
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_perf import PerfCallback, analyze
from lightning_perf.callbacks.recording import memory_watch
from lightning_perf.callbacks.recording.memory_watch import (
    MAX_SAMPLES,
    MemoryWatch,
    Tracked,
    bytes_per_item,
    count_tensors,
    process_bytes,
)
from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.run_files.fit.memory_growth import read_growth
from tests.callbacks.training import context, loader, make_module, make_trainer

MIB = 2**20


def watched(folder: Path, monkeypatch: pytest.MonkeyPatch, levels: list[int]) -> tuple[list[int], list[int]]:
    """Feed levels in MiB to a watch, and return the steps of its samples and censuses."""
    state = FitState()
    remaining = iter(levels)
    counted: list[int] = []
    monkeypatch.setattr(memory_watch, "count_tensors", lambda _: counted.append(state.step) or ())
    level = lambda: next(remaining) * MIB  # noqa: E731
    watch = MemoryWatch(context(folder, state=state), level=level)
    for step in range(memory_watch.WARMUP_STEPS + len(levels)):
        state.step = step
        watch.on_step_end()
    watch.finish()
    record = read_growth(folder)
    assert record is not None
    return [sample.step for sample in record.samples], counted


def test_samples_are_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, counted = watched(tmp_path, monkeypatch, [500] * 2000)
    assert len(steps) < MAX_SAMPLES
    assert {after - before for before, after in itertools.pairwise(steps)} == {32}
    assert steps[0] == memory_watch.WARMUP_STEPS
    assert counted == []  # constant memory is never searched


def test_the_allocator_of_a_gpu_is_asked_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, asked = FitState(), [0]
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: asked.append(state.step) or MIB)
    watch = MemoryWatch(context(tmp_path, state=state, device="cuda:0"))
    for state.step in range(1020):
        watch.on_step_end()
    assert 50 <= len(asked) <= 70


@pytest.mark.parametrize(
    ("share", "grown"),
    # Growth of 20, 50 and 110 MiB: the first over 16 MiB, and each over twice the last. Two censuses are free.
    [(1.0, [20, 50, 110]), (0.0, [20, 50])],
)
def test_tensors_are_counted_when_the_growth_has_doubled_within_a_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, grown: list[int]
) -> None:
    monkeypatch.setattr(memory_watch, "CENSUS_SHARE", share)
    _, counted = watched(tmp_path, monkeypatch, [500 + 10 * step for step in range(20)])
    assert [10 * (step - memory_watch.WARMUP_STEPS) for step in counted] == grown


@pytest.mark.parametrize(("later", "again"), [([520 + step for step in range(20)], True), ([520] * 20, False)])
def test_tensors_are_counted_again_at_the_end_of_steady_growth_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: list[int], again: bool
) -> None:
    """No finding needs the second count of memory that stays at a level."""
    _, counted = watched(tmp_path, monkeypatch, [500, *later])
    assert len(counted) == 1 + again


def test_windows_of_the_profiler_are_left_out(tmp_path: Path) -> None:
    watch = MemoryWatch(context(tmp_path, state=FitState(step=100, profiling=True)))
    watch.on_step_end()
    watch.finish()
    watch.close()
    assert read_growth(tmp_path) is None


def test_the_count_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch, "KEPT_GROUPS", 10**6)  # other tests may have left many tensors
    before = {(group.kind, group.has_graph): group for group in count_tensors(Tracked())}
    base = torch.zeros(1000, 77)
    kept = [base, base[0], *(torch.zeros(3, 77, dtype=torch.float64) for _ in range(5))]
    kept.append((torch.ones(13, 77, requires_grad=True) * 2).detach().requires_grad_() * 3)
    after = {(group.kind, group.has_graph): group for group in count_tensors(Tracked())}

    def change(kind: str, graph: bool = False) -> tuple[int, int]:
        old, new = before.get((kind, graph)), after[kind, graph]
        return new.count - (old.count if old else 0), new.bytes - (old.bytes if old else 0)

    assert change("Tensor float64 [3, 77]") == (5, 5 * 3 * 77 * 8)
    assert change("Tensor float32 [13, 77]", graph=True) == (1, 4 * 13 * 77)
    views = change("Tensor float32 [1000, 77]"), change("Tensor float32 [77]")
    assert [count for count, _ in views] == [1, 1]
    assert sum(size for _, size in views) == 4 * 1000 * 77  # a view shares its memory
    assert len(kept) == 8


def test_the_container_that_grows_is_found_among_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[object] = [0] * 20
    cache = collections.defaultdict(int, {number: number for number in range(20)})
    monkeypatch.setattr(memory_watch, "count_tensors", lambda _: kept.extend([np.zeros(3)] * 700) or ())
    state = FitState(step=100)
    watch = MemoryWatch(context(tmp_path, state=state))
    watch.on_step_end()
    for state.step in (110, 150):
        watch._take_census(state.step)
        watch._samples += watch._samples * 200  # our own list of samples does not count
        cache.update({number: number for number in range(9000)})
    watch.finish()
    watch.close()
    record = read_growth(tmp_path)
    assert record is not None
    assert [census.items for census in record.censuses] == [0, pytest.approx(700, abs=50)]


@pytest.mark.parametrize(
    ("items", "size"),
    [
        ([float(number) for number in range(20)], 24),
        ([np.zeros(1000) for _ in range(20)], 8000),
        ({number: {"image": torch.zeros(500)} for number in range(20)}, 2000),
        ({bytes([number]) * 3000 for number in range(20)}, 3000),
        ([torch.zeros(20, 1000)[number] for number in range(20)], 80_000),  # views of one row that keep all rows alive
    ],
)
def test_the_size_of_an_item(items: Any, size: int) -> None:
    assert bytes_per_item(items) == pytest.approx(size, abs=1000)


def test_objects_that_all_items_share_are_not_counted() -> None:
    shared = bytes(10**6)
    assert bytes_per_item([(number, shared) for number in range(20)]) < 200


def test_resident_memory() -> None:
    before = process_bytes()
    assert before is not None
    with mmap.mmap(-1, 64 * MIB) as held:  # new pages, while an allocation may reuse what earlier tests freed
        for place in range(0, 64 * MIB, 4096):
            held[place] = 1
        after = process_bytes()
    assert after is not None
    assert after - before >= 60 * MIB


def test_a_list_that_grows_in_a_training(tmp_path: Path) -> None:
    kept: list[Any] = []

    def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        pages = mmap.mmap(-1, 4 * MIB)  # new ones, while an allocation may reuse what earlier tests freed
        kept.append(torch.frombuffer(pages, dtype=torch.float32).fill_(1.0))
        loss: torch.Tensor = self.loss(batch)
        return loss

    module = make_module(training_step=training_step)
    callback = PerfCallback(dirpath=tmp_path, fingerprint="light", probe=False, report="none", skip_first=1, active=1)
    make_trainer(tmp_path, callback).fit(module, loader(80))
    report = analyze(tmp_path)
    assert report.memory_growth is not None
    assert report.memory_growth.bytes_per_step == pytest.approx(4 * MIB, rel=0.25)
    (finding,) = [finding for finding in report.fit_findings if finding.kind == "leak"]
    assert "more Tensor float32 [1048576] on cpu hold" in finding.evidence[1]
    assert "4.00 MiB per step" in finding.evidence[1]
