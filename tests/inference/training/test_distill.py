"""The loss by hand, and what of teacher and student a training touches."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.training.distill import Distillation, distillation_loss

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*litlogger"),
]


def softmax(logits: list[float], temperature: float = 1.0) -> list[float]:
    powers = [math.exp(logit / temperature) for logit in logits]
    return [power / sum(powers) for power in powers]


def by_hand(student: list[list[float]], teacher: list[list[float]], labels: list[int], t: float, alpha: float) -> float:
    total = 0.0
    for s, u, label in zip(student, teacher, labels, strict=True):
        q, p = softmax(s, t), softmax(u, t)
        soft = sum(pi * math.log(pi / qi) for pi, qi in zip(p, q, strict=True))
        total += alpha * t * t * soft - (1 - alpha) * math.log(softmax(s)[label])
    return total / len(labels)


@pytest.mark.parametrize(("temperature", "alpha"), [(1.0, 0.5), (4.0, 0.9), (2.5, 0.0), (3.0, 1.0)])
def test_the_loss_is_that_of_the_paper(temperature: float, alpha: float):
    student = [[0.3, -1.2, 2.0], [1.5, 0.2, -0.4]]
    teacher = [[0.9, -2.0, 1.1], [0.1, 2.2, -1.0]]
    labels = [2, 0]
    loss = distillation_loss(torch.tensor(student), torch.tensor(teacher), torch.tensor(labels), temperature, alpha)
    assert float(loss) == pytest.approx(by_hand(student, teacher, labels, temperature, alpha), rel=1e-5)


def test_the_gradient_keeps_its_size_at_high_temperatures():
    """At high T and logits of mean 0 the gradient tends to (student - teacher) / classes: equation 4 of the paper."""
    student = torch.tensor([[0.5, -0.2, -0.3]], requires_grad=True)
    teacher = torch.tensor([[-0.4, 0.1, 0.3]])
    distillation_loss(student, teacher, torch.tensor([0]), temperature=1000.0, alpha=1.0).backward()
    torch.testing.assert_close(student.grad, (student - teacher).detach() / 3, rtol=1e-2, atol=1e-4)


class Teacher(nn.Module):
    """Gives other outputs in training mode, and changes its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(2)
        self.modes: list[bool] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.modes.append(self.training)
        return self.norm(self.layer(inputs.mul_(2)))


@pytest.fixture
def data() -> DataLoader:
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(inputs, (inputs[:, 0] > 0).long()), batch_size=16)


def trainer(folder: Path, epochs: int = 1) -> Trainer:
    return Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )


def test_the_teacher_is_frozen_and_in_no_checkpoint(tmp_path: Path, data: DataLoader):
    teacher = Teacher()
    before = copy.deepcopy(teacher.state_dict())
    assert isinstance(data.dataset, TensorDataset)
    inputs = data.dataset.tensors[0].clone()
    distillation = Distillation(nn.Linear(4, 2), teacher, lr=0.1)
    student, frozen = distillation.student, distillation.teacher
    assert isinstance(student, nn.Linear)
    assert isinstance(frozen, Teacher)
    weight = student.weight.detach().clone()
    fit = trainer(tmp_path)
    fit.fit(distillation, data, data)
    fit.save_checkpoint(tmp_path / "last.ckpt")
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert set(state) == {"student.weight", "student.bias"}
    assert not torch.equal(student.weight, weight)
    assert teacher.modes == []
    assert frozen.modes
    assert not any(frozen.modes)
    for held in (teacher, frozen):
        assert all(torch.equal(tensor, before[name]) for name, tensor in held.state_dict().items())
    assert torch.equal(data.dataset.tensors[0], inputs)
    assert all(p.requires_grad for p in teacher.parameters())
    assert {"train/loss", "train/accuracy", "val/loss", "val/accuracy"} <= set(fit.callback_metrics)
    assert fit.optimizers[0].param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)


def test_a_student_learns_what_only_the_teacher_knows(tmp_path: Path, data: DataLoader):
    """With soft labels alone, from a teacher that says the contrary of the labels."""
    assert isinstance(data.dataset, TensorDataset)
    inputs, labels = data.dataset.tensors
    teacher = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        teacher.weight.zero_()
        teacher.weight[0, 0], teacher.weight[1, 0] = 3.0, -3.0  # class 0 where the first number is positive
    torch.manual_seed(0)
    distillation = Distillation(nn.Linear(4, 2), teacher, alpha=1.0, lr=0.2)
    trainer(tmp_path, epochs=20).fit(distillation, data, data)
    with torch.no_grad():
        assert (distillation(inputs).argmax(1) == labels).float().mean() < 0.1


def test_without_a_teacher_it_is_cross_entropy(tmp_path: Path, data: DataLoader):
    torch.manual_seed(0)
    module = Distillation(nn.Linear(4, 2), lr=0.2)
    assert module.teacher is None
    fit = trainer(tmp_path, epochs=10)
    fit.fit(module, data, data)
    assert float(fit.callback_metrics["val/accuracy"]) > 0.9


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"temperature": float("nan")}, "temperature must be above 0"),
        ({"alpha": 1.1}, "must be from 0 to 1, got 1.1"),
        ({"alpha": -0.1}, "must be from 0 to 1"),
        ({"lr": 0.0}, "learning rate must be above 0"),
        ({"weight_decay": -1.0}, "weight decay must be 0 or more"),
    ],
)
def test_settings_out_of_range_are_errors(setting: dict[str, float], words: str):
    with pytest.raises(InferenceError, match=words):
        Distillation(nn.Linear(4, 2), nn.Linear(4, 2), **setting)


def test_other_classes_are_an_error(tmp_path: Path, data: DataLoader):
    with pytest.raises(InferenceError, match=r"teacher returns \(16, 3\) and the student \(16, 2\)"):
        trainer(tmp_path).fit(Distillation(nn.Linear(4, 2), nn.Linear(4, 3)), data, data)
