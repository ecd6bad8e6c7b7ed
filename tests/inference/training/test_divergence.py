"""Distillation stays stable by default, and says when a training diverged."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.training.distill import Distillation, _Observed
from lightning_perf.inference.training.fine_tune import FineTuner

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

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.norms: list[float] = []

    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
        if gradients:
            self.norms.append(float(torch.cat([g.flatten() for g in gradients]).norm()))

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


def fit(module: Distillation, data: DataLoader, folder: Path, epochs: int = 1, **settings) -> Recorder:
    recorder = Recorder()
    Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[recorder],
        **settings,
    ).fit(module, data)
    return recorder


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
@pytest.mark.filterwarnings("ignore:The training diverged")
def test_gradients_are_clipped_unless_the_trainer_has_its_own_limit(data: DataLoader, tmp_path: Path):
    torch.manual_seed(0)
    assert max(fit(Distillation(Steep(), lr=1e-6), data, tmp_path).norms) == pytest.approx(5.0, rel=1e-3)
    free = Distillation(Steep(), lr=1e-6, max_gradient_norm=None)
    assert max(fit(free, data, tmp_path).norms) > 100
    own = fit(Distillation(Steep(), lr=1e-6), data, tmp_path, gradient_clip_val=0.5)
    assert max(own.norms) == pytest.approx(0.5, rel=1e-3)


def test_a_good_training_has_not_diverged(data: DataLoader, tmp_path: Path, recwarn: pytest.WarningsRecorder):
    torch.manual_seed(0)
    module = Distillation(nn.Linear(4, 2), lr=0.1)
    fit(module, data, tmp_path, epochs=3)
    assert module.divergence is None
    assert not any("diverged" in str(warning.message) for warning in recwarn)


def test_soft_labels_that_contradict_the_labels_are_no_divergence(data: DataLoader, tmp_path: Path):
    teacher = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        teacher.weight.zero_()
        teacher.weight[0, 0], teacher.weight[1, 0] = 3.0, -3.0
    module = Distillation(nn.Linear(4, 2), teacher, alpha=1.0, lr=0.2)
    fit(module, data, tmp_path, epochs=3)
    assert module.divergence is None


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
        found = _Observed()
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


def test_a_diverged_variant_is_a_reason(data: DataLoader):
    with pytest.raises(
        VariantError, match=r"training diverged at a learning rate of 0\.01: the student gives the same"
    ):
        FineTuner(data)(Dead(), None)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"warm_up": 1.0}, r"warm_up, .*must be in \[0, 1\), got 1.0"),
        ({"warm_up": -0.1}, "warm_up"),
        ({"max_gradient_norm": 0.0}, "max_gradient_norm must be above 0, or None for no clipping, got 0.0"),
        ({"max_gradient_norm": float("nan")}, "max_gradient_norm"),
    ],
)
def test_settings_out_of_range_are_errors(setting: dict[str, Any], words: str):
    with pytest.raises(InferenceError, match=words):
        Distillation(nn.Linear(4, 2), **setting)


def test_the_temperature_with_the_most_accurate_student_is_chosen(data: DataLoader, monkeypatch: pytest.MonkeyPatch):
    held_out = list(data)
    student = nn.Linear(4, 2)
    tried: list[float] = []

    def train(tuner: FineTuner, module: nn.Module, teacher: nn.Module | None) -> nn.Module:
        tried.append(tuner.temperature)
        assert isinstance(module, nn.Linear)
        assert module is not student
        assert tuner.epochs == 2
        if tuner.temperature == 4.0:
            raise VariantError("its training diverged")
        with torch.no_grad():
            module.weight.zero_()
            module.bias.zero_()
            module.weight[1, 0] = {1.0: 0.0, 2.0: 1.0, 8.0: 0.1}[tuner.temperature]  # as accurate, but less sure
        return module.eval()

    monkeypatch.setattr(FineTuner, "__call__", train)
    tuner = FineTuner(data, epochs=2)
    assert tuner.choose_temperature(student, nn.Linear(4, 2), held_out, (1.0, 2.0, 4.0, 8.0)) == 2.0
    assert tried == [1.0, 2.0, 4.0, 8.0]
    with pytest.raises(VariantError, match="diverged"):
        tuner.choose_temperature(student, nn.Linear(4, 2), held_out, (4.0,))


def test_choosing_a_temperature_trains_students(data: DataLoader):
    teacher = FineTuner(data, epochs=3, lr=0.1)(nn.Linear(4, 2), None)
    student = nn.Linear(4, 2)
    before = student.weight.clone()
    assert FineTuner(data, lr=0.1).choose_temperature(student, teacher, data) in (1.0, 2.0, 4.0)
    assert torch.equal(student.weight, before)
