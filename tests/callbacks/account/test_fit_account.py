"""The account of a fit, against delays planted on a clock that only they advance: every figure is exact."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from lightning_perf import PerfCallback
from lightning_perf.callbacks import session
from lightning_perf.callbacks.account.fit_account import FitAccountant
from lightning_perf.run_files.fit.account import FitAccount, account_paths, read_account
from tests.callbacks.perf_training import fit, quick
from tests.callbacks.training import (
    PACKAGES,
    Points,
    Stream,
    failing,
    hooked,
    loader,
    make_module,
    make_trainer,
    recording_logger,
)

LOADER_ITER = DataLoader.__iter__


class Clock:
    """A clock that stands still unless somebody sleeps."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def sleep(self, ms: float) -> None:
        self.now_ns += round(ms * 1e6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(session, "FitAccountant", functools.partial(FitAccountant, now_ns=clock))
    return clock


def account(folder: Path, batches: Any, **options: Any) -> FitAccount:
    """Fit, and return the account."""
    fit(folder, batches, **options)
    return account_of(folder)


def account_of(folder: Path) -> FitAccount:
    (path,) = [path for found in folder.rglob("account.rank0.jsonl") for path in account_paths(found.parent)]
    return read_account(path)  # checks that the entries add up to the wall time


def times(account: FitAccount) -> dict[str, float]:
    """The milliseconds of each entry that took any."""
    return {f"{e.group}/{e.name}": e.time_ns / 1e6 for e in account.entries if e.time_ns}


def sleeper(clock: Clock, name: str = PACKAGES[0], **hooks: float) -> Any:
    """A callback that sleeps in some hooks."""
    return hooked("Sleeper", name, **{hook: sleeping(clock, ms) for hook, ms in hooks.items()})


def sleeping(clock: Clock, ms: float) -> Any:
    return lambda *args, **kwargs: clock.sleep(ms)


def slow_module(clock: Clock, name: str = PACKAGES[0], **overrides: Any) -> Any:
    """A module whose training step takes 100 ms, then 10 ms, and whose validation step takes 20 ms."""

    def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        clock.sleep(10 if getattr(self, "warm", False) else 100)
        self.warm = True
        self.log("loss", 1.0)
        return self.loss(batch)

    def validation_step(self: Any, batch: Any, batch_idx: int) -> None:
        clock.sleep(20)

    def on_validation_epoch_end(self: Any) -> None:
        clock.sleep(3)

    def setup(self: Any, stage: str) -> None:
        clock.sleep(7)

    def prepare_data(self: Any) -> None:
        clock.sleep(50)

    def teardown(self: Any, stage: str) -> None:
        clock.sleep(5)

    functions = (training_step, validation_step, on_validation_epoch_end, setup, prepare_data, teardown)
    return make_module(name, **{each.__name__: each for each in functions} | overrides)


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize("profiler", [None, "simple", "advanced"])
def test_planted_delays_have_their_exact_size_and_their_name(
    tmp_path: Path, clock: Clock, name: str, profiler: str | None
) -> None:
    callback = sleeper(
        clock, name, on_train_batch_end=2, on_train_epoch_end=4, on_fit_start=6, on_validation_end=8, teardown=9
    )
    logger = recording_logger(tmp_path, name)
    logger.log_metrics = lambda *args, **kwargs: clock.sleep(11)
    points = functools.partial(Points, before=sleeping(clock, 1))  # a sample takes 1 ms, in this process
    found = account(
        tmp_path,
        DataLoader(points(6), 2),
        val=DataLoader(points(4), 2),
        module=slow_module(clock, name),
        callback=quick(log_metrics=False),
        name=name,
        callbacks=[callback],
        logger=logger,
        log_every_n_steps=1,
        max_epochs=2,
        num_sanity_val_steps=1,
        profiler=profiler,
    )
    assert times(found) == {
        "set-up/Trainer and strategy": 7,
        "data preparation/prepare_data": 50,
        "sanity check/": 2 + 20 + 3,
        "first step/fetch": 2,
        "first step/forward": 100,
        "training steps/fetch": 5 * 2,
        "training steps/forward": 5 * 10,
        "validation/fetch": 2 * 2 * 2,
        "validation/compute": 2 * 2 * 20,
        "validation/metrics and loop": 2 * 3,
        "logging/Curves.log_metrics": 6 * 11,
        "callbacks/Sleeper.on_fit_start": 6,
        "callbacks/Sleeper.on_train_batch_end": 6 * 2,
        "callbacks/Sleeper.on_train_epoch_end": 2 * 4,
        "callbacks/Sleeper.on_validation_end": 3 * 8,
        "callbacks/Sleeper.teardown": 9,
        "tear-down/": 5,
    }
    assert found.wall_ns == clock.now_ns
    assert (found.end, found.steps, found.batches, found.samples) == ("returned", 6, 6, 12)
    assert (found.epochs, found.validations) == (2, 2)
    before_first_step_ms = 7 + 50 + 25 + 8 + 6
    assert found.first_step_end_ns == (before_first_step_ms + 2 + 100 + 2 + 11) * 1e6
    assert found.entry("callbacks", "Sleeper.on_train_batch_end").count == 6


def test_a_checkpoint_is_divided_into_gathering_and_writing(tmp_path: Path, clock: Clock) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.plugins import TorchCheckpointIO

    class SlowDisk(TorchCheckpointIO):
        def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            clock.sleep(70)
            super().save_checkpoint(*args, **kwargs)

    def on_save_checkpoint(self: Any, checkpoint: dict[str, Any]) -> None:
        clock.sleep(30)

    trainer = fit(
        tmp_path,
        6,
        module=make_module(on_save_checkpoint=on_save_checkpoint),
        callbacks=[ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2, save_top_k=-1)],
        enable_checkpointing=True,
        plugins=[SlowDisk()],
    )
    found = account_of(tmp_path)
    assert times(found) == {"checkpoints/write": 3 * 70, "checkpoints/gather": 3 * 30}
    assert found.entry("checkpoints", "gather").count == 3
    assert "save_checkpoint" not in vars(trainer.strategy)


@pytest.mark.parametrize(("accumulate", "first", "steps"), [(1, 100, 5), (2, 110, 3), (4, 130, 2)])
def test_the_first_step_lasts_until_an_optimizer_has_stepped(
    tmp_path: Path, clock: Clock, accumulate: int, first: float, steps: int
) -> None:
    found = account(tmp_path, 5, module=slow_module(clock), accumulate_grad_batches=accumulate)
    assert times(found)["first step/forward"] == first
    assert times(found)["training steps/forward"] == 140 - first
    assert (found.batches, found.steps) == (5, steps)


@pytest.mark.parametrize("raw", [False, True])
def test_manual_optimization(tmp_path: Path, clock: Clock, raw: bool) -> None:
    def training_step(self: Any, batch: Any, batch_idx: int) -> None:
        clock.sleep(10)
        optimizer = self.optimizers(use_pl_optimizer=not raw)
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step(lambda: clock.sleep(3))

    module = make_module(training_step=training_step, automatic_optimization=False)
    found = times(account(tmp_path, 4, module=module))
    inner = {"first step/forward": 13.0, "training steps/forward": 39.0}
    outer = {
        "first step/forward": 10.0,
        "first step/optimizer": 3.0,
        "training steps/forward": 30.0,
        "training steps/optimizer": 9.0,
    }
    assert found == (inner if raw else outer)


def test_validation_inside_an_epoch_is_not_part_of_a_step(tmp_path: Path, clock: Clock) -> None:
    found = account(tmp_path, 8, val=3, module=slow_module(clock), val_check_interval=2, accumulate_grad_batches=4)
    assert found.validations == 4
    assert times(found) == {
        "set-up/Trainer and strategy": 7,
        "data preparation/prepare_data": 50,
        "first step/forward": 130,
        "training steps/forward": 40,
        "validation/compute": 4 * 3 * 20,
        "validation/metrics and loop": 4 * 3,
        "tear-down/": 5,
    }


def test_data_sets_without_a_length_and_reloaded_loaders(tmp_path: Path, clock: Clock) -> None:
    def train_dataloader(self: Any) -> Any:
        clock.sleep(40)
        return DataLoader(Stream(6), 2)

    module = slow_module(clock, train_dataloader=train_dataloader)
    found = times(account(tmp_path, None, module=module, max_epochs=2, reload_dataloaders_every_n_epochs=1))
    assert found["data preparation/train_dataloader"] == 80
    assert found["first step/forward"] + found["training steps/forward"] == 150


@pytest.mark.parametrize("persistent", [False, True])
def test_starts_of_workers_are_listed_by_epoch(tmp_path: Path, persistent: bool) -> None:
    def data(batches: int) -> Any:
        return DataLoader(Points(2 * batches), 2, num_workers=1, persistent_workers=persistent)

    found = account(tmp_path, data(3), val=data(2), max_epochs=3)
    assert [(s.stage, s.epoch, s.workers, s.persistent) for s in found.starts] == [
        (stage, epoch, 1, persistent) for epoch in range(3) for stage in ("training", "validation")
    ]
    for stage in ("training", "validation"):
        of_stage = [start for start in found.starts if start.stage == stage]
        assert found.entry("worker start-up", stage).count == 3
        assert sum(start.start_ns for start in of_stage) == found.entry("worker start-up", stage).time_ns
        first = found.entry("worker start-up", f"{stage}: first batch")
        assert first.count == 3
        assert sum(start.first_batch_ns for start in of_stage) == pytest.approx(first.time_ns, abs=1e6)
    assert DataLoader.__iter__ is LOADER_ITER


def test_a_loader_of_the_program_belongs_to_the_callback_that_iterates_over_it(tmp_path: Path) -> None:
    def on_train_epoch_start(self: Any, trainer: Any, module: Any) -> None:
        assert len(list(DataLoader(Points(4), 2, num_workers=1))) == 2

    callback = hooked("Reads", on_train_epoch_start=on_train_epoch_start)
    found = account(tmp_path, 3, callbacks=[callback])
    assert "worker start-up" not in {entry.group for entry in found.entries if entry.time_ns}
    assert not found.starts
    assert found.entry("callbacks", "Reads.on_train_epoch_start").time_ns > 0


@pytest.mark.parametrize("error", [RuntimeError("planted"), KeyboardInterrupt()])
def test_a_fit_that_fails_leaves_its_account(tmp_path: Path, clock: Clock, error: BaseException) -> None:
    def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        clock.sleep(10)
        if batch_idx == 3:
            raise error
        return self.loss(batch)

    trainer = make_trainer(tmp_path, quick(), callbacks=[sleeper(clock, on_train_batch_end=2)])
    with pytest.raises((RuntimeError, SystemExit)):
        trainer.fit(make_module(training_step=training_step), loader(6))
    found = account_of(tmp_path)
    assert found.end == "exception"
    assert times(found) == {
        "first step/forward": 10,
        "training steps/forward": 30,
        "callbacks/Sleeper.on_train_batch_end": 6,
    }
    assert DataLoader.__iter__ is LOADER_ITER
    assert not {"start", "stop", "profile", "describe"} & vars(trainer.profiler).keys()


def test_the_account_covers_the_fit_and_the_process_before_it(tmp_path: Path) -> None:
    callback = quick()
    trainer, module = make_trainer(tmp_path, callback, num_sanity_val_steps=1), make_module()
    start_ns = time.perf_counter_ns()
    trainer.fit(module, loader(8), loader(2))
    outside_ns = time.perf_counter_ns() - start_ns
    found = account_of(tmp_path)
    assert 0 < found.wall_ns <= outside_ns
    assert all(entry.time_ns >= 0 for entry in found.entries)
    assert "own cost" in {entry.group for entry in found.entries if entry.time_ns}
    assert not {"start", "stop", "profile", "describe"} & vars(trainer.profiler).keys()
    # A second fit of the same process and callback has an account of its own, and nothing before it.
    second = account(tmp_path / "second", 3, callback=callback)
    assert (second.steps, second.before_ns) == (3, None)


def test_a_learning_rate_search_belongs_to_its_callback(tmp_path: Path, clock: Clock) -> None:
    from lightning.pytorch.callbacks import LearningRateFinder

    finder = LearningRateFinder(num_training_steps=6)
    found = account(tmp_path, 8, module=slow_module(clock, lr=0.1), callbacks=[finder])
    assert found.batches == 8
    assert times(found)["callbacks/LearningRateFinder.on_fit_start"] >= 100
    assert times(found)["first step/forward"] == 10


def test_a_fault_of_the_account_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FitAccountant, "_end_of_first_step", failing(ValueError("planted")))
    trainer, module, data = make_trainer(tmp_path, PerfCallback(report="none")), make_module(), loader(3)
    with pytest.warns(RuntimeWarning, match="account of the fit is left out") as caught:
        trainer.fit(module, data)
    assert len([each for each in caught if "account" in str(each.message)]) == 1
    assert trainer.global_step == 3
    assert not list(tmp_path.rglob("account.*"))
    assert DataLoader.__iter__ is LOADER_ITER
