"""Sleeps of 30 ms planted in real fits on a CPU: the first finding names the place. A fit without sleeps has none."""

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning.pytorch")

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset, default_collate

import lightning_perf
from lightning_perf import PerfCallback
from lightning_perf.findings.finding import Finding
from lightning_perf.report.document import PerfReport
from tests.callbacks.training import make_trainer

SLEEP_S = 0.03
BATCH = 64

pytestmark = pytest.mark.slow


class SleepyCallback(Callback):
    def on_train_batch_end(self, *_: Any) -> None:
        time.sleep(SLEEP_S)


class SleepyLogger(CSVLogger):
    pause_s = SLEEP_S

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        time.sleep(self.pause_s)
        super().log_metrics(metrics, step)


class SlowLogger(SleepyLogger):
    pause_s = 0.3


class Net(LightningModule):
    """Some 30 ms of products per step."""

    def __init__(self, sleeps_in: str) -> None:
        super().__init__()
        self.sleeps_in = sleeps_in
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(512, 1536), torch.nn.ReLU(), torch.nn.Linear(1536, 1536), torch.nn.Linear(1536, 10)
        )

    def sleep_in(self, place: str) -> None:
        if place == self.sleeps_in:
            time.sleep(SLEEP_S)

    def training_step(self, batch: Sequence[torch.Tensor], _: int) -> torch.Tensor:
        self.sleep_in("training_step")
        loss = torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        self.sleep_in("transfer")
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        self.sleep_in("optimizer_step")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


def sleepy_collate(samples: list[Any]) -> Any:
    time.sleep(SLEEP_S)
    return default_collate(samples)


def fit(folder: Path, place: str, *, batches: int = 16, log_every: int = 50, with_stack: bool = False) -> PerfReport:
    """Train for some steps with a sleep in one place, and analyze the run."""
    loggers = {"logger": SleepyLogger, "every tenth step": SlowLogger}
    callback = PerfCallback(skip_first=2, wait=0, warmup=1, active=4, dirpath=folder / "perf", with_stack=with_stack)
    data = TensorDataset(torch.randn(batches * BATCH, 512), torch.randint(0, 10, (batches * BATCH,)))
    loader = DataLoader(data, BATCH, collate_fn=sleepy_collate if place == "collate" else None)
    trainer = make_trainer(
        folder,
        callback,
        callbacks=[SleepyCallback()] if place == "callback" else [],
        max_epochs=1,
        log_every_n_steps=log_every,
        logger=loggers.get(place, CSVLogger)(folder),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning's advice on so small a training
            trainer.fit(Net(place), loader)
    finally:
        torch.set_num_threads(threads)
    return lightning_perf.analyze(folder / "perf")


def of_host_time(report: PerfReport) -> list[Finding]:
    return [f for f in report.findings if f.kind in {"cpu-pauses", "periodic-steps", "input-bound"}]


@pytest.mark.parametrize(
    ("place", "kind", "name"),
    [
        ("training_step", "cpu-pauses", "outside operators in forward"),
        ("callback", "cpu-pauses", "SleepyCallback.on_train_batch_end"),
        ("logger", "cpu-pauses", "the logger SleepyLogger"),
        ("transfer", "cpu-pauses", "Net.transfer_batch_to_device"),
        ("collate", "input-bound", "the collate_fn sleepy_collate"),
        ("optimizer_step", "cpu-pauses", "Net.optimizer_step"),
    ],
)
def test_a_planted_sleep_is_named_first(tmp_path: Path, place: str, kind: str, name: str) -> None:
    report = fit(tmp_path, place, log_every=1 if place == "logger" else 50)
    first = report.findings[0]
    assert first.kind == kind
    assert name in " ".join((first.title, *first.evidence))
    assert first.saving_high_ms is not None
    assert first.saving_high_ms >= 0.9 * 1000 * SLEEP_S


def test_stacks_name_the_line(tmp_path: Path) -> None:
    report = fit(tmp_path, "training_step", with_stack=True)
    (pause,) = [finding for finding in report.findings if finding.kind == "cpu-pauses"]
    line = Net.sleep_in.__code__.co_firstlineno
    assert "in sleep_in (" in pause.title
    assert f"test_planted_sleeps.py:{line})" in pause.title
    assert "with_stack" not in pause.action


def test_a_slow_logger_in_every_tenth_step_is_named(tmp_path: Path) -> None:
    report = fit(tmp_path, "every tenth step", batches=56, log_every=10)
    assert report.fit_findings[0].kind == "slow-logger"  # and no long steps as well: one cause is one finding
    assert "for SlowLogger" in report.fit_findings[0].title
    assert report.fit_findings[0].saving_high_ms == pytest.approx(0.9 * 5 * 300, rel=0.2)
    assert "periodic-steps" not in {finding.kind for finding in report.findings}


def test_a_fit_without_sleeps_has_no_such_finding(tmp_path: Path) -> None:
    assert of_host_time(fit(tmp_path, "nowhere", batches=40, log_every=10)) == []
