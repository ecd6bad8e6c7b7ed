from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningDataModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.training.fine_tune import FineTuner
from lightning_perf.inference.transforms.pruning import Prune, Sparsify
from tests.inference.transforms.support import small_network, subject_of


class Pictures(LightningDataModule):
    """A bright half, left or right."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(2, (64,), generator=generator)
        pictures = 0.3 * torch.rand(64, 1, 8, 8, generator=generator)
        for picture, label in zip(pictures, self.labels, strict=True):
            picture[0, :, 4 * label : 4 * label + 4] += 0.7
        self.pictures = pictures

    def train_dataloader(self) -> DataLoader:
        return DataLoader(TensorDataset(self.pictures, self.labels), batch_size=16, shuffle=True)


def accuracy(module: nn.Module, data: Pictures) -> float:
    with torch.no_grad():
        return float((module(data.pictures).argmax(1) == data.labels).float().mean())


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_trains_the_model_that_it_was_given_and_leaves_no_trace(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    data = Pictures()
    module = small_network(classes=2)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    trained = FineTuner(data, epochs=5, lr=0.02)(module, None)
    assert trained is module
    assert not any(layer.training for layer in trained.modules())
    assert accuracy(trained, data) > 0.9
    assert torch.equal(torch.get_rng_state(), state)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_loaders_and_data_modules_train_the_same_each_time():
    data = Pictures()
    weights = [
        FineTuner(source)(small_network(classes=2), None)[0].weight
        for source in (data, data.train_dataloader(), data.train_dataloader())
    ]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[1], weights[2])


def test_it_distils_at_the_temperature_with_the_most_accurate_student():
    data = Pictures()
    batches = list(data.train_dataloader())
    teacher = FineTuner(data, epochs=5, lr=0.02)(small_network(classes=2), None)
    before = teacher[0].weight.clone()
    student = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    untrained = student[1].weight.clone()
    tuner = FineTuner(data, epochs=8, lr=0.05, alpha=1.0)
    # At 1e-30 the training fails, and that temperature is left out.
    assert tuner.choose_temperature(student, teacher, batches, (1e-30, 2.0)) == 2.0
    with pytest.raises(VariantError, match="fine-tuning failed"):
        tuner.choose_temperature(student, teacher, batches, (1e-30,))
    assert torch.equal(student[1].weight, untrained)
    tuner(student, teacher)
    assert accuracy(student, data) > 0.9
    assert torch.equal(teacher[0].weight, before)


def test_a_pruned_model_recovers_and_a_sparse_one_stays_sparse():
    pytest.importorskip("torch_pruning", reason="needs the infer extra")
    data = Pictures()
    tuner = FineTuner(data, epochs=5, lr=0.02)
    module = tuner(small_network(classes=2), None)
    subject = subject_of(module)
    assert accuracy(Prune(50).apply(module, subject, tuner), data) > 0.9
    sparse = Sparsify(80).apply(module, subject, tuner)
    assert accuracy(sparse, data) > 0.9
    assert float((sparse[5].weight == 0).float().mean()) > 0.5


def test_a_training_that_fails_is_a_reason():
    data = Pictures()
    with pytest.raises(VariantError, match="fine-tuning failed"):
        FineTuner(data)(nn.Linear(3, 2), None)
    with pytest.raises(VariantError, match=r"diverged.*NaN or infinite"):
        FineTuner(data, epochs=3, lr=1e12)(small_network(classes=2), None)
