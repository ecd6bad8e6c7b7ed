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
from tests.callbacks.perf_training import assert_untapped, quick
from tests.callbacks.training import (
    PACKAGES,
    Points,
    Stream,
    loader,
    make_module,
    make_trainer,
    package,
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


def account_of(folder: Path) -> FitAccount:
    (path,) = [path for found in folder.rglob("account.rank0.jsonl") for path in account_paths(found.parent)]
    return read_account(path)  # checks that the entries add up to the wall time


def times(account: FitAccount) -> dict[str, float]:
    """The milliseconds of each entry that took any."""
    return {f"{e.group}/{e.name}": e.time_ns / 1e6 for e in account.entries if e.time_ns}


def sleeper(clock: Clock, name: str = PACKAGES[0], **hooks: float) -> Any:
    """A callback that sleeps in some hooks."""
    base = package(f"{name}.callbacks").Callback
    return type("Sleeper", (base,), {hook: sleeping(clock, ms) for hook, ms in hooks.items()})()


def sleeping(clock: Clock, ms: float) -> Any:
    return lambda *args, **kwargs: clock.sleep(ms)


class SlowPoints(Points):
    """A data set that takes 1 ms per sample, in the process of the training."""

    def __init__(self, size: int, clock: Clock) -> None:
        super().__init__(size)
        self.clock = clock

    def __getitem__(self, index: int) -> Any:
        self.clock.sleep(1)
        return super().__getitem__(index)


def slow_module(clock: Clock, name: str = PACKAGES[0], **overrides: Any) -> Any:
    """A module whose training step takes 100 ms, then 10 ms, and whose validation step takes 20 ms."""

    def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        clock.sleep(10 if getattr(self, "warm", False) else 100)
        self.warm = True
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
    trainer = make_trainer(
        tmp_path,
        quick(log_metrics=False),
        name,
        callbacks=[callback],
        logger=logger,
        log_every_n_steps=1,
        max_epochs=2,
        num_sanity_val_steps=1,
        profiler=profiler,
    )

    def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        clock.sleep(10 if getattr(self, "warm", False) else 100)
        self.warm = True
        self.log("loss", 1.0)
        return self.loss(batch)

    points = functools.partial(SlowPoints, clock=clock)
    trainer.fit(
        slow_module(clock, name, training_step=training_step),
        DataLoader(points(6), 2),
        DataLoader(points(4), 2),
    )
    account = account_of(tmp_path)
    assert times(account) == {
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
    assert account.wall_ns == clock.now_ns
    assert (account.end, account.steps, account.batches, account.samples) == ("returned", 6, 6, 12)
    assert (account.epochs, account.validations) == (2, 2)
    before_first_step_ms = 7 + 50 + 25 + 8 + 6
    assert account.first_step_end_ns == (before_first_step_ms + 2 + 100 + 2 + 11) * 1e6
    assert account.entry("callbacks", "Sleeper.on_train_batch_end").count == 6


def test_a_checkpoint_is_divided_into_gathering_and_writing(tmp_path: Path, clock: Clock) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.plugins import TorchCheckpointIO

    class SlowDisk(TorchCheckpointIO):
        def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            clock.sleep(70)
            super().save_checkpoint(*args, **kwargs)

    def on_save_checkpoint(self: Any, checkpoint: dict[str, Any]) -> None:
        clock.sleep(30)

    trainer = make_trainer(
        tmp_path,
        quick(),
        callbacks=[ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2, save_top_k=-1)],
        enable_checkpointing=True,
        plugins=[SlowDisk()],
    )
    trainer.fit(make_module(on_save_checkpoint=on_save_checkpoint), loader(6))
    account = account_of(tmp_path)
    assert times(account) == {"checkpoints/write": 3 * 70, "checkpoints/gather": 3 * 30}
    assert account.entry("checkpoints", "gather").count == 3
    assert "save_checkpoint" not in vars(trainer.strategy)


@pytest.mark.parametrize(("accumulate", "first", "steps"), [(1, 100, 5), (2, 110, 3), (4, 130, 2)])
def test_the_first_step_lasts_until_an_optimizer_has_stepped(
    tmp_path: Path, clock: Clock, accumulate: int, first: float, steps: int
) -> None:
    trainer = make_trainer(tmp_path, quick(), accumulate_grad_batches=accumulate)
    trainer.fit(slow_module(clock), loader(5))
    account = account_of(tmp_path)
    assert times(account)["first step/forward"] == first
    assert times(account)["training steps/forward"] == 140 - first
    assert (account.batches, account.steps) == (5, steps)


@pytest.mark.parametrize("raw", [False, True])
def test_manual_optimization(tmp_path: Path, clock: Clock, raw: bool) -> None:
    def training_step(self: Any, batch: Any, batch_idx: int) -> None:
        clock.sleep(10)
        optimizer = self.optimizers(use_pl_optimizer=not raw)
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step(lambda: clock.sleep(3))

    def init(self: Any) -> None:
        super(type(self), self).__init__()
        self.automatic_optimization = False

    trainer = make_trainer(tmp_path, quick())
    trainer.fit(make_module(training_step=training_step, __init__=init), loader(4))
    found = times(account_of(tmp_path))
    inner = {"first step/forward": 13.0, "training steps/forward": 39.0}
    outer = {
        "first step/forward": 10.0,
        "first step/optimizer": 3.0,
        "training steps/forward": 30.0,
        "training steps/optimizer": 9.0,
    }
    assert found == (inner if raw else outer)


def test_validation_inside_an_epoch_is_not_part_of_a_step(tmp_path: Path, clock: Clock) -> None:
    trainer = make_trainer(tmp_path, quick(), val_check_interval=2, accumulate_grad_batches=4)
    trainer.fit(slow_module(clock), loader(8), loader(3))
    account = account_of(tmp_path)
    assert account.validations == 4
    assert times(account) == {
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

    trainer = make_trainer(tmp_path, quick(), max_epochs=2, reload_dataloaders_every_n_epochs=1)
    trainer.fit(slow_module(clock, train_dataloader=train_dataloader))
    found = times(account_of(tmp_path))
    assert found["data preparation/train_dataloader"] == 80
    assert found["first step/forward"] + found["training steps/forward"] == 150


@pytest.mark.parametrize("persistent", [False, True])
def test_starts_of_workers_are_listed_by_epoch(tmp_path: Path, persistent: bool) -> None:
    def data(batches: int) -> Any:
        return DataLoader(Points(2 * batches), 2, num_workers=1, persistent_workers=persistent)

    trainer = make_trainer(tmp_path, quick(), max_epochs=3)
    trainer.fit(make_module(), data(3), data(2))
    account = account_of(tmp_path)
    assert [(s.stage, s.epoch, s.workers, s.persistent) for s in account.starts] == [
        (stage, epoch, 1, persistent) for epoch in range(3) for stage in ("training", "validation")
    ]
    for stage in ("training", "validation"):
        of_stage = [start for start in account.starts if start.stage == stage]
        assert account.entry("worker start-up", stage).count == 3
        assert sum(start.start_ns for start in of_stage) == account.entry("worker start-up", stage).time_ns
        first = account.entry("worker start-up", f"{stage}: first batch")
        assert first.count == 3
        assert sum(start.first_batch_ns for start in of_stage) == pytest.approx(first.time_ns, abs=1e6)
    assert DataLoader.__iter__ is LOADER_ITER


def test_a_loader_of_the_program_belongs_to_the_callback_that_iterates_over_it(tmp_path: Path) -> None:
    def on_train_epoch_start(self: Any, trainer: Any, module: Any) -> None:
        assert len(list(DataLoader(Points(4), 2, num_workers=1))) == 2

    from lightning.pytorch.callbacks import Callback

    callback = type("Reads", (Callback,), {"on_train_epoch_start": on_train_epoch_start})()
    make_trainer(tmp_path, quick(), callbacks=[callback]).fit(make_module(), loader(3))
    account = account_of(tmp_path)
    assert "worker start-up" not in {entry.group for entry in account.entries if entry.time_ns}
    assert not account.starts
    assert account.entry("callbacks", "Reads.on_train_epoch_start").time_ns > 0


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
    account = account_of(tmp_path)
    assert account.end == "exception"
    assert times(account) == {
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
    account = account_of(tmp_path)
    assert 0 < account.wall_ns <= outside_ns
    assert all(entry.time_ns >= 0 for entry in account.entries)
    assert "own cost" in {entry.group for entry in account.entries if entry.time_ns}
    assert not {"start", "stop", "profile", "describe"} & vars(trainer.profiler).keys()
    # A second fit of the same process and callback has an account of its own, and nothing before it.
    trainer = make_trainer(tmp_path / "second", callback)
    trainer.fit(module, loader(3))
    second = account_of(tmp_path / "second")
    assert (second.steps, second.before_ns) == (3, None)


def test_other_functions_of_a_trainer_have_no_account(tmp_path: Path) -> None:
    callback = quick()
    trainer = make_trainer(tmp_path, callback)
    trainer.validate(make_module(), loader(2), verbose=False)
    assert_untapped(trainer)
    assert not list(tmp_path.rglob("account.*"))


def test_a_learning_rate_search_belongs_to_its_callback(tmp_path: Path, clock: Clock) -> None:
    from lightning.pytorch.callbacks import LearningRateFinder

    def init(self: Any) -> None:
        super(type(self), self).__init__()
        self.lr = 0.1

    module = slow_module(clock, __init__=init)
    trainer = make_trainer(tmp_path, quick(), callbacks=[LearningRateFinder(num_training_steps=6)])
    trainer.fit(module, loader(8))
    account = account_of(tmp_path)
    assert account.batches == 8
    assert times(account)["callbacks/LearningRateFinder.on_fit_start"] >= 100
    assert times(account)["first step/forward"] == 10


def test_a_fault_of_the_account_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, **_: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(FitAccountant, "_end_of_first_step", broken)
    trainer, module, data = make_trainer(tmp_path, PerfCallback(report="none")), make_module(), loader(3)
    with pytest.warns(RuntimeWarning, match="account of the fit is left out") as caught:
        trainer.fit(module, data)
    assert len([each for each in caught if "account" in str(each.message)]) == 1
    assert trainer.global_step == 3
    assert not list(tmp_path.rglob("account.*"))
    assert DataLoader.__iter__ is LOADER_ITER
