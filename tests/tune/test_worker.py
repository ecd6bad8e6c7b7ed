"""Orders carried out, in this process."""

import time
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.utils.data import DataLoader

from lightning_perf.run_files.probe import Probe, ProbedChange
from lightning_perf.tune import worker
from lightning_perf.tune.levers.registry import LEVERS, find_lever
from lightning_perf.tune.messages import Prediction, Profile, Ready, Scouted, Window
from lightning_perf.tune.training import Training
from lightning_perf.tune.worker import MOST_SAVING, probed_savings
from lightning_perf.workers.channel import Failure
from tests.tune.conversation import Conversation, converse, order
from tests.tune.trainings import TRAINER, Data, Pictures, Tiny

pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_same_seed_gives_the_same_losses_and_another_gives_others(tmp_path):
    def losses(seed):
        return converse(order("tests.tune.trainings:tiny", tmp_path, seed=seed), 4)[1].losses

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_the_same_samples_in_larger_pieces_have_the_same_loss(tmp_path):
    training = Training(Tiny(), DataLoader(Pictures(), 4, shuffle=True), TRAINER | {"accumulate_grad_batches": 2})
    _, plain = converse(order(training, tmp_path), 6)
    _, larger = converse(order(training, tmp_path, "fewer-micro-batches"), 6)
    assert larger.samples == plain.samples
    assert larger.losses == pytest.approx(plain.losses, rel=1e-5)


def test_levers_together_reach_the_running_training(tmp_path):
    class Changed(Tiny):
        def on_train_start(self):
            loader = self.trainer.train_dataloader
            assert self.trainer.precision == "bf16-mixed"
            assert self.optimizers().param_groups[0]["fused"]
            assert self.layer.weight.is_contiguous(memory_format=torch.channels_last)
            assert (loader.batch_size, loader.num_workers) == (8, 1)

    levers = ("bf16-mixed", "fused-optimizer", "channels-last", "batch-size-x2", "workers-1")
    _, window = converse(order(Training(Changed("Adam"), Data(), TRAINER), tmp_path, *levers), 2)
    assert isinstance(window, Window)
    assert (window.samples, window.workers) == (16, 1)
    assert window.seconds / 2 <= window.longest_s <= window.seconds


def test_a_compiled_module_trains_with_a_data_module(tmp_path, monkeypatch):
    whole = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, mode: whole(module, backend="eager"))
    _, plain = converse(order("tests.tune.trainings:tiny", tmp_path), 3)
    _, compiled = converse(order("tests.tune.trainings:tiny", tmp_path, "compile"), 3)
    assert compiled.losses == pytest.approx(plain.losses, rel=1e-5)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("tests.tune.trainings:failing", "RuntimeError: no such file: weights.pt"),
        ("tests.tune.trainings:on_two_devices", "trials run on one device, and this Trainer has 2: set devices=1"),
        ("tests.tune.trainings:nothing", "has no nothing"),
        ("tests.tune.no_such:thing", "there is no module tests.tune.no_such"),
        (Training(nn.Linear(1, 1)), "not a LightningModule, but Linear"),
        (Training(Tiny()), "train_dataloader"),
    ],
)
@pytest.mark.parametrize("scout", [False, True])
def test_what_cannot_train_says_why(source, said, scout, tmp_path):
    (answer,) = converse(order(source, tmp_path, scout=scout), 1)
    assert isinstance(answer, Failure)
    assert said in answer.reason
    assert "\n" not in answer.reason
    assert (answer.error == "NoTrainingError") == answer.reason.startswith("PKG:NAME ")


def test_a_scout_tells_what_applies_and_the_lines_to_write(tmp_path):
    (answer,) = converse(order("tests.tune.trainings:tiny", tmp_path, scout=True))
    assert isinstance(answer, Scouted)
    assert answer.machine.device == "cpu"
    assert answer.profile.note is None
    assert answer.profile.step_ms is not None
    assert answer.profile.step_ms > 0
    assert all(0 <= found.low <= found.high <= MOST_SAVING < 1 for found in answer.profile.predictions)
    assert set(answer.profile.workers_save) == {lever.name for lever in LEVERS if lever.family == "workers"}
    assert all(low <= high <= MOST_SAVING for low, high in answer.profile.workers_save.values())
    assert answer.missing["tf32"] == "needs a CUDA GPU with TF32"
    assert answer.missing["channels-last"] is None
    assert str(answer.settings["batch-size-x2"][0]) == "DataLoader(…, batch_size=8)"
    (line,) = map(str, answer.settings["fused-optimizer"])
    assert line == "torch.optim.SGD(…, fused=True)  # in configure_optimizers"
    assert answer.settings.keys() == {name for name, reason in answer.missing.items() if reason is None}


def test_each_number_of_workers_has_a_prediction_of_its_own_if_the_training_waits():
    one, two = find_lever("workers-1"), find_lever("workers-2")
    waits = Prediction("input-bound", 0.2, 0.4, "recording")
    profile = Profile((waits,), workers_save={"workers-1": (-0.05, 0.1)})
    assert profile.prediction(one) == replace(waits, low=-0.05, high=0.1)
    assert profile.prediction(two) == waits
    assert replace(profile, predictions=()).prediction(one) is None


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


def test_manual_optimization_with_two_optimizers(tmp_path, monkeypatch):
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

    training = Training(Two(), DataLoader(Pictures(), 4), TRAINER)
    _, window = converse(order(training, tmp_path), 5)
    assert (window.steps, window.samples, len(window.losses)) == (6, 12, 3)
    monkeypatch.setattr(worker, "PROBE_S", 0.1)
    (scouted,) = converse(order(training, tmp_path, scout=True))
    assert scouted.profile.note is None
    assert scouted.profile.step_ms > 0


def test_a_trial_that_ends_early_says_why(tmp_path):
    class Ending(Tiny):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.trainer.should_stop = True

    (answer,) = converse(order(Training(Tiny("RMSprop"), Data(), TRAINER), tmp_path, "fused-optimizer"), 1)
    assert answer == Failure("NotApplicableError", "RMSprop has no fused form")
    none = DataLoader(Pictures(3), batch_size=4, drop_last=True)
    (answer,) = converse(order(Training(Tiny(), none, TRAINER), tmp_path), 1)
    assert answer.reason == "the training ended before its first step: its data give no batch"
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


def test_probed_savings_are_shares_of_the_recorded_step():
    def change(name, low_ns, high_ns):
        return ProbedChange(name, "", (low_ns + high_ns) / 2, low_ns, high_ns, 0.0, 1.0, 3)

    changes = (change("bf16", -3e6, -2e6), change("channels-last", 2e6, 2.5e6), change("batch", 8e6, 9.9e6))
    fields = {"rank": 0, "sources": (), "step_ns": 1e7, "operator_ns": 9e6, "seconds": 5.0, "changes": changes}
    probe = Probe("A CPU", covered_ns=8e6, **fields)
    assert probed_savings(probe) == {
        "bf16-mixed": pytest.approx((-0.3, -0.2)),
        "channels-last": pytest.approx((0.2, 0.25)),
        "batch-size-x2": pytest.approx((0.8, MOST_SAVING)),
    }
    assert probed_savings(Probe("A CPU", covered_ns=4e6, **fields)) == {}, "it measured too little"
    assert probed_savings(Probe("A CPU", covered_ns=8e6, same_device=False, **fields)) == {}
    assert probed_savings(None) == {}
