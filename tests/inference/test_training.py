"""The loss by hand, what of teacher and student a training touches, and how it stays stable or says that it did not."""

import copy
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.training import Distillation, FineTuner, ObservedLosses, distillation_loss
from lightning_perf.inference.transforms import Prune, Sparsify
from tests.inference.support import small_network, subject_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*litlogger"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
]


@pytest.fixture
def data() -> DataLoader:
    inputs = torch.randn(320, 4, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(inputs, (inputs[:, 0] > 0).long()), batch_size=16)


class Recorder(Callback):
    """Notes the learning rate and the norm of the gradient before each step."""

    trainer: Trainer

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.norms: list[float] = []

    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
        if gradients:
            self.norms.append(float(torch.cat([g.flatten() for g in gradients]).norm()))

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


def fit(
    module: Distillation,
    data: DataLoader,
    folder: Path,
    epochs: int = 1,
    held_out: DataLoader | None = None,
    **settings,
) -> Recorder:
    recorder = Recorder()
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    settings |= dict.fromkeys(off, False)
    recorder.trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", default_root_dir=folder, callbacks=[recorder], **settings
    )
    recorder.trainer.fit(module, data, held_out)
    return recorder


def contrary_teacher() -> nn.Linear:
    """Says class 0 where the first number is positive."""
    teacher = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        teacher.weight.zero_()
        teacher.weight[0, 0], teacher.weight[1, 0] = 3.0, -3.0
    return teacher


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
    trained = fit(distillation, data, tmp_path, held_out=data).trainer
    trained.save_checkpoint(tmp_path / "last.ckpt")
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
    assert {"train/loss", "train/accuracy", "val/loss", "val/accuracy"} <= set(trained.callback_metrics)
    assert trained.optimizers[0].param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)


def test_a_student_learns_what_only_the_teacher_knows(data: DataLoader, tmp_path: Path):
    """With soft labels alone, from a teacher that says the contrary of the labels. That is no divergence."""
    assert isinstance(data.dataset, TensorDataset)
    inputs, labels = data.dataset.tensors
    torch.manual_seed(0)
    distillation = Distillation(nn.Linear(4, 2), contrary_teacher(), alpha=1.0, lr=0.2)
    fit(distillation, data, tmp_path, epochs=4)
    with torch.no_grad():
        assert (distillation(inputs).argmax(1) == labels).float().mean() < 0.1
    assert distillation.divergence is None


def test_without_a_teacher_it_is_cross_entropy(data: DataLoader, tmp_path: Path, recwarn: pytest.WarningsRecorder):
    torch.manual_seed(0)
    module = Distillation(nn.Linear(4, 2), lr=0.2)
    assert module.teacher is None
    trained = fit(module, data, tmp_path, epochs=3, held_out=data).trainer
    assert float(trained.callback_metrics["val/accuracy"]) > 0.9
    assert module.divergence is None
    assert not any("diverged" in str(warning.message) for warning in recwarn)


def test_the_rate_warms_up_and_falls(data: DataLoader, tmp_path: Path):
    rates = fit(Distillation(nn.Linear(4, 2), lr=0.1, warm_up=0.2), data, tmp_path).rates
    assert rates[:4] == pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert rates[4] == pytest.approx(0.1)
    assert rates[-1] == pytest.approx(0.1 * (1 + math.cos(math.pi * 15 / 16)) / 2)
    assert all(later <= earlier for earlier, later in pairwise(rates[4:]))


def test_a_distilled_student_has_a_lower_rate():
    """The gradient of the soft loss by the logits is up to T times the one of cross-entropy."""
    assert Distillation(nn.Linear(4, 2), lr=0.1).peak_lr == 0.1
    distilled = Distillation(nn.Linear(4, 2), nn.Linear(4, 2), lr=0.1, temperature=4.0, alpha=0.5)
    assert distilled.peak_lr == pytest.approx(0.1 / 2.5)


class Steep(nn.Module):
    """A model with gradients of norm 100 and more."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(1000 * inputs)


@pytest.mark.filterwarnings("ignore:The training diverged")
def test_gradients_are_clipped_unless_the_trainer_has_its_own_limit(data: DataLoader, tmp_path: Path):
    torch.manual_seed(0)
    assert max(fit(Distillation(Steep(), lr=1e-6), data, tmp_path).norms) == pytest.approx(5.0, rel=1e-3)
    free = Distillation(Steep(), lr=1e-6, max_gradient_norm=None)
    assert max(fit(free, data, tmp_path).norms) > 100
    own = fit(Distillation(Steep(), lr=1e-6), data, tmp_path, gradient_clip_val=0.5)
    assert max(own.norms) == pytest.approx(0.5, rel=1e-3)


def test_a_loss_of_nan_ends_the_training_and_is_said(data: DataLoader, tmp_path: Path):
    student = nn.Linear(4, 2)
    with torch.no_grad():
        student.weight[0, 0] = float("nan")
    module = Distillation(student)
    with pytest.warns(UserWarning, match=r"training diverged: .*NaN or infinite at step 1 of 20"):
        recorder = fit(module, data, tmp_path, epochs=5)
    assert len(recorder.rates) == 20


class Dead(nn.Module):
    """All of its hidden units are off for every input, as after a step that was too large."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        nn.init.constant_(self.hidden.bias, -1e6)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.hidden(inputs).relu())


def test_a_dead_student_is_said(data: DataLoader, tmp_path: Path):
    module = Distillation(Dead())
    with pytest.warns(UserWarning, match="the same answer for every input"):
        fit(module, data, tmp_path)


def test_a_rising_loss_is_said(data: DataLoader, tmp_path: Path):
    student = Steep()
    nn.init.zeros_(student.layer.weight)
    module = Distillation(student, nn.Linear(4, 2), lr=100.0, max_gradient_norm=None)
    with pytest.warns(UserWarning, match=r"the loss rose from 0\.\d+ to"):
        fit(module, data, tmp_path)


def test_a_jump_that_ends_at_a_constant_answer_is_said():
    """Units that a large step switched off do not come back, and the outputs hardly depend on the inputs."""

    def observed(losses: list[float]) -> str | None:
        found = ObservedLosses()
        targets = torch.eye(2).repeat(4, 1)  # a constant answer has a loss of log 2 = 0.693
        for loss in losses:
            found.add(torch.tensor(loss), torch.randn(8, 2), [(1.0, targets)])
        return found.divergence()

    assert observed([0.7, 3.0, *[0.7] * 18]) == (
        "the loss jumped from 0.7 to 3 and ended at 0.7; a constant answer has 0.693"
    )
    assert observed([0.7, 3.0, *[0.6] * 18]) is None  # it recovered
    assert observed([0.7, 0.8, *[0.7] * 18]) is None  # it learned nothing, but it did not jump
    assert observed([0.01, 0.3, *[0.02] * 18]) is None  # fine-tuning a good model


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"temperature": float("nan")}, "temperature must be above 0"),
        ({"alpha": 1.1}, "must be from 0 to 1, got 1.1"),
        ({"lr": 0.0}, "learning rate must be above 0"),
        ({"weight_decay": -1.0}, "weight decay must be 0 or more"),
        ({"warm_up": 1.0}, r"warm_up, .*must be in \[0, 1\), got 1.0"),
        ({"max_gradient_norm": 0.0}, "max_gradient_norm must be above 0, or None for no clipping, got 0.0"),
    ],
)
def test_settings_out_of_range_are_errors(setting: dict[str, Any], words: str):
    with pytest.raises(InferenceError, match=words):
        Distillation(nn.Linear(4, 2), nn.Linear(4, 2), **setting)


def test_other_classes_are_an_error(tmp_path: Path, data: DataLoader):
    with pytest.raises(InferenceError, match=r"teacher returns \(16, 3\) and the student \(16, 2\)"):
        fit(Distillation(nn.Linear(4, 2), nn.Linear(4, 3)), data, tmp_path)


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


def test_it_trains_the_model_that_it_was_given_and_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
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
