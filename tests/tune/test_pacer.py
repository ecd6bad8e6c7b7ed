"""Windows of real fits, in this process."""

import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from lightning_perf.tune import worker
from lightning_perf.tune.messages import Ready
from lightning_perf.tune.training import Training
from tests.tune.conversation import Conversation, converse, order
from tests.tune.trainings import TRAINER, Data, Pictures, Tiny

pytestmark = pytest.mark.filterwarnings("ignore")


def test_windows_are_trained_and_told(tmp_path):
    ready, first, second = converse(order(Training(Tiny(), Data(), TRAINER), tmp_path), 3, 20)
    assert isinstance(ready, Ready)
    assert (first.steps, first.samples, len(first.losses)) == (3, 12, 3)
    assert (second.steps, second.samples, len(second.losses)) == (20, 80, 20)  # over an epoch's end
    assert first.seconds > 0
    assert list(Path(tmp_path).iterdir()) == []


def test_a_step_of_micro_batches_has_the_mean_of_their_losses(tmp_path):
    class Told(Tiny):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * 0 + batch_idx

    data = DataLoader(Pictures(64), batch_size=4)
    _, window = converse(order(Training(Told(), data, TRAINER | {"accumulate_grad_batches": 4}), tmp_path), 3)
    assert window.losses == (1.5, 5.5, 9.5)
    assert (window.steps, window.samples) == (3, 48)


def test_manual_optimization_with_two_optimizers(tmp_path):
    class Two(Tiny):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                loss = super().training_step(batch, batch_idx)
                self.manual_backward(loss)
                optimizer.step()
            return {"loss": loss}

        def configure_optimizers(self):
            return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.1)]

    _, window = converse(order(Training(Two(), DataLoader(Pictures(), 4), TRAINER), tmp_path), 5)
    assert (window.steps, window.samples, len(window.losses)) == (6, 12, 3)


def test_data_without_a_batch_say_so(tmp_path):
    data = DataLoader(Pictures(3), batch_size=4, drop_last=True)
    (answer,) = converse(order(Training(Tiny(), data, TRAINER), tmp_path), 1)
    assert answer.reason == "the training ended before its first step: its data give no batch"


def test_a_training_that_ends_by_itself_says_so(tmp_path):
    class Ending(Tiny):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.trainer.should_stop = True

    ready, answer = converse(order(Training(Ending(), Data(), TRAINER), tmp_path), 5)
    assert isinstance(ready, Ready)
    assert "ended by itself" in answer.reason


def test_workers_make_no_batches_between_windows(tmp_path):
    class Counted(Pictures):
        def __getitem__(self, index):
            time.sleep(0.005)
            with (tmp_path / "made").open("a") as file:
                file.write(".")
            return super().__getitem__(index)

    def made():
        return (tmp_path / "made").stat().st_size

    seen = []

    class Watching(Conversation):
        def receive(self, *kinds):
            if self.answers:
                time.sleep(0.05)
                before = made() if (tmp_path / "made").exists() else 0
                time.sleep(0.3)
                seen.append((before, made()))
            return super().receive(*kinds)

    loader = DataLoader(Counted(4000), batch_size=4, num_workers=1, prefetch_factor=50)
    worker.work(Watching(order(Training(Tiny(), loader, TRAINER), tmp_path / "work"), 3, 3))
    _, after_first, after_second = seen
    assert after_first[0] == after_first[1]
    assert after_first[1] < after_second[0]
    assert after_second[0] == after_second[1]
