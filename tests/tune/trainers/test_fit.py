"""What is left out of a fit of a trial, and what is not."""

import logging
from argparse import Namespace
from collections import UserList
from contextlib import nullcontext

import lightning.pytorch as pl
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.cli import SaveConfigCallback
from torch import nn
from torch.utils.data import DataLoader

from lightning_perf import PerfCallback
from lightning_perf.callbacks.precision_callback import PrecisionCallback
from lightning_perf.tune.messages import Window
from lightning_perf.tune.trainers.fit import LightningTrainer
from lightning_perf.tune.training import Training
from tests.tune.conversation import converse, order
from tests.tune.trainings import TRAINER, Data, Pictures, Tiny

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_module_of_the_other_package_trains_quietly(tmp_path):
    class Other(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Conv2d(2, 2, 3)

        forward, configure_optimizers = Tiny.forward, Tiny.configure_optimizers
        optimizer = "SGD"

        def training_step(self, batch, batch_idx):
            assert type(self.trainer) is pytorch_lightning.Trainer
            return self(batch[0]).sum()

    _, window = converse(order(Training(Other(), DataLoader(Pictures(), 4), TRAINER), tmp_path), 2)
    assert window.steps == 2
    for package in ("lightning.pytorch", "pytorch_lightning"):  # whichever was imported last speaks for both
        assert logging.getLogger(f"{package}.utilities.rank_zero").getEffectiveLevel() == logging.ERROR


class Everything(Tiny):
    """What real trainings have: a logger, callbacks, a schedule over all steps, one that watches validation."""

    def on_train_epoch_end(self):
        self.logger.experiment.add_scalar("loss", 1.0, 1)

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        raise AssertionError("trials do not validate")

    def val_dataloader(self):
        return DataLoader(Pictures())

    def configure_callbacks(self):
        return [pl.callbacks.EarlyStopping("val_loss")]

    def configure_optimizers(self):
        first = torch.optim.SGD(self.parameters(), lr=0.1)
        total = self.trainer.estimated_stepping_batches
        return (
            {"optimizer": first, "lr_scheduler": torch.optim.lr_scheduler.OneCycleLR(first, 0.1, total_steps=total)},
        )


class Watching(Everything):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


@pytest.mark.parametrize("kind", [Everything, Watching])
def test_what_real_trainings_have_does_not_end_or_break_a_trial(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    callbacks = [
        pl.callbacks.ModelCheckpoint(tmp_path / "checkpoints"),
        pl.callbacks.LearningRateMonitor(),
        pl.callbacks.TQDMProgressBar(),
        pl.callbacks.ModelSummary(),
        pl.callbacks.Timer("00:00:00:01"),
    ]
    given = UserList(callbacks)  # Hydra's lists are of its own class, too
    trainer = TRAINER | {"callbacks": given, "max_epochs": 1, "max_steps": 2, "logger": True, "fast_dev_run": True}
    _, window = converse(order(Training(kind(), Data(), trainer), tmp_path / "work"), 40)
    assert isinstance(window, Window)
    assert window.steps == 40  # two epochs and a half
    assert list(tmp_path.iterdir()) == []


class Autocast(Tiny):
    def training_step(self, batch, batch_idx):
        assert self(batch[0]).dtype is torch.bfloat16
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("kind", [PerfCallback, PrecisionCallback])
def test_what_a_callback_does_to_the_precision_is_part_of_the_training(kind, tmp_path):
    callback = kind(precision="bf16-mixed", dirpath=tmp_path / "perf")
    _, window = converse(order(Training(Autocast(), Data(), TRAINER | {"callbacks": callback}), tmp_path / "work"), 3)
    assert isinstance(window, Window)
    assert list(tmp_path.iterdir()) == []  # and what it observes is not


@pytest.mark.parametrize(
    ("options", "arguments", "refused"),
    [
        ({}, {"logger": False}, True),
        ({"overwrite": True}, {"logger": False}, False),
        ({"config_filename": "other.yaml"}, {"logger": False}, False),
        ({}, {}, False),  # the default logger has a new folder for each run
    ],
)
def test_a_configuration_that_lightning_cli_does_not_overwrite_is_named(options, arguments, refused, tmp_path):
    (tmp_path / "config.yaml").touch()
    callbacks = [SaveConfigCallback(None, None, **options)]
    training = Training(Tiny(), None, {**arguments, "default_root_dir": str(tmp_path), "callbacks": callbacks})
    assert LightningTrainer(training).refused() == (str(tmp_path / "config.yaml") if refused else "")
    with pytest.raises(RuntimeError, match="to NOT exist") if refused else nullcontext():
        if arguments:
            callbacks[0].parser = Namespace(save=lambda *_, **__: None)
            pl.Trainer(**TRAINER | training.trainer, max_steps=1).fit(Tiny(), DataLoader(Pictures(), 4))
