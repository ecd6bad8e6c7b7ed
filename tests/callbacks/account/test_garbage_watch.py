"""The watch of garbage collections, against the interpreter's own counts."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.callbacks.account.totals import GarbageWatch
from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.run_files.fit.account import GcTotals, account_paths, read_account
from tests.callbacks.perf_training import quick
from tests.callbacks.training import loader, make_module, make_trainer


@pytest.fixture
def state() -> FitState:
    return FitState(in_step=True)


@pytest.fixture
def watch(state: FitState) -> Iterator[GarbageWatch]:
    """A watch of a fit in a step, of the collections that the test asks for and no others."""
    was_on = gc.isenabled()
    gc.disable()
    while gc.collect():  # a finalizer of an earlier test may leave more
        pass
    watch = GarbageWatch(state)
    watch.start()
    try:
        yield watch
    finally:
        watch.close()
        if was_on:
            gc.enable()


def counts(watch: GarbageWatch) -> list[int]:
    return [each.count for each in watch.totals()]


def test_the_counts_are_those_of_the_interpreter(watch: GarbageWatch) -> None:
    before = gc.get_stats()
    for generation in (0, 0, 0, 1, 1, 2):
        for _ in range(10):
            cycle: list[Any] = []
            cycle.append(cycle)
        del cycle
        gc.collect(generation)
    after = gc.get_stats()
    totals = watch.totals()
    assert [each.generation for each in totals] == [0, 1, 2]
    assert counts(watch) == [new["collections"] - old["collections"] for old, new in zip(before, after, strict=True)]
    assert counts(watch) == [3, 2, 1]
    assert [each.freed for each in totals] == [
        new["collected"] - old["collected"] for old, new in zip(before, after, strict=True)
    ]
    assert [each.freed for each in totals] == [30, 20, 10]
    for each in totals:
        assert 0 < each.time_ns / each.count <= each.longest_ns <= each.time_ns


def test_collections_between_steps_in_other_threads_and_after_the_end_do_not_count(
    watch: GarbageWatch, state: FitState
) -> None:
    state.in_step = False
    gc.collect()
    state.in_step = True
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    assert counts(watch) == [0, 0, 0]
    gc.collect()
    assert counts(watch) == [0, 0, 1]
    watch.close()
    watch.close()
    gc.collect()
    assert counts(watch) == [0, 0, 1]
    assert not [each for each in gc.callbacks if isinstance(getattr(each, "__self__", None), GarbageWatch)]


@pytest.mark.parametrize("fails", [False, True])
def test_a_fit_counts_the_collections_of_its_steps(tmp_path: Path, fails: bool) -> None:
    """Two collections in each step; those of validation and of epochs' starts belong to no step."""

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        gc.collect()
        gc.collect(1)
        if fails and batch_idx == 5:
            raise RuntimeError("planted")
        return self.loss(batch)

    def elsewhere(self: Any, *_: Any) -> None:
        gc.collect()

    before = list(gc.callbacks)
    module = make_module(training_step=training_step, validation_step=elsewhere, on_train_epoch_start=elsewhere)
    trainer = make_trainer(tmp_path, quick())
    gc.disable()
    try:
        with pytest.raises(RuntimeError, match="planted") if fails else nullcontext():
            trainer.fit(module, loader(8), loader(2))
    finally:
        gc.enable()
    assert gc.callbacks == before
    (folder,) = {path.parent for path in tmp_path.rglob("account.rank0.jsonl")}
    account = read_account(account_paths(folder)[0])
    begun = 6 if fails else 8
    assert [(each.generation, each.count) for each in account.collections] == [(0, 0), (1, begun), (2, begun)]
    assert account.collections[2].longest_ns <= account.collections[2].time_ns < account.wall_ns


def test_an_account_without_collections_was_not_measured(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, quick())
    trainer.fit(make_module(), loader(4))
    (path,) = tmp_path.rglob("account.rank0.jsonl")
    account = read_account(path)
    assert all(isinstance(each, GcTotals) for each in account.collections)
    head, key, rest = path.read_text(encoding="utf-8").partition(',"collections":[')
    assert key
    path.write_text(head + rest.partition("]")[2], encoding="utf-8")
    assert read_account(path).collections == ()
