"""`PerfCallback(shadow=…)`: the figures against FP32 passes by hand, and trainings that stay the same bit for bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lightning_perf import PerfCallback, analyze
from lightning_perf.callbacks.precision.switch import PrecisionError
from lightning_perf.run_files.numerics.samples import SHADOW, ShadowSample
from lightning_perf.run_files.steps import STEPS
from tests.callbacks.perf_training import assert_untapped
from tests.callbacks.training import PACKAGES, loader, logging_step, make_module, make_trainer


def noisy_loss(self: Any, batch: Any) -> torch.Tensor:
    noise = torch.randn(1).item() + np.random.rand() + random.random()
    values = self.last(self.drop(self.norm(self.first(batch[0] + 0.1 * noise)).relu_()))
    return nn.functional.cross_entropy(values.float(), batch[1])


def make_net(name: str = PACKAGES[0], **overrides: Any) -> Any:
    module = make_module(name, **{"loss": noisy_loss, "training_step": logging_step, **overrides})
    del module.layer
    torch.manual_seed(0)
    module.first, module.norm, module.last = nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)
    module.drop, module.seen = nn.Dropout(0.3), []
    return module


def train(folder: Path, module: Any, name: str = PACKAGES[0], *, batches: int = 12, **options: Any) -> Any:
    perf = options.pop("perf", None)
    callback = PerfCallback(report="none", dirpath=folder / "perf", active=1, **perf) if perf is not None else None
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    trainer = make_trainer(folder, callback, name, **options)
    trainer.fit(module, loader(batches, 8))
    trainer.next_random = torch.rand(3)
    return trainer


def samples(folder: Path) -> tuple[ShadowSample, ...]:
    return SHADOW.read(SHADOW.path(folder / "perf", 0))


def test_the_times_of_shadow_steps_are_left_out(tmp_path: Path) -> None:
    train(tmp_path, make_net(), perf={"shadow": 5, "skip_first": 2, "wait": 0, "warmup": 0})
    steps = STEPS.read(STEPS.path(tmp_path / "perf", 0))
    assert steps.step[steps.profiled].tolist() == [0, 2, 5, 10]
    times = analyze(tmp_path / "perf").step_times
    assert times is not None
    assert times.steps + times.profiled_steps + times.warmup_steps == 12
    assert times.profiled_steps == 2


CASES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16-mixed"},
    "accumulation": {"precision": "bf16-mixed", "accumulate_grad_batches": 3},
    "clipping": {"precision": "bf16-mixed", "gradient_clip_val": 0.1},
    "other package": {"precision": "bf16-mixed", "accumulate_grad_batches": 3, "gradient_clip_val": 0.1},
}


@pytest.mark.parametrize("case", CASES)
def test_the_training_is_the_same_bit_for_bit(tmp_path, case):
    name, options = PACKAGES[case == "other package"], CASES[case]
    ours, plain = make_net(name), make_net(name)
    one = train(tmp_path / "a", ours, name, perf={"shadow": 2, "forecast": 1.0}, **options)
    two = train(tmp_path / "b", plain, name, **options)
    for key, value in plain.state_dict().items():  # with BatchNorm's statistics
        assert torch.equal(ours.state_dict()[key], value), key
    momenta = [trainer.optimizers[0].state_dict()["state"].values() for trainer in (one, two)]
    assert all(torch.equal(a["momentum_buffer"], b["momentum_buffer"]) for a, b in zip(*momenta, strict=True))
    assert one.callback_metrics["loss"] == two.callback_metrics["loss"]
    assert torch.equal(one.next_random, two.next_random)
    steps = 12 // options.get("accumulate_grad_batches", 1)
    assert [sample.step for sample in samples(tmp_path / "a")] == list(range(0, steps, 2))


def test_an_fp32_training_is_its_own_shadow(tmp_path):
    train(tmp_path, make_net(), perf={"shadow": 3})
    for sample in samples(tmp_path):
        assert sample.loss == sample.fp32_loss
        assert sample.whole.cosine == pytest.approx(1.0, abs=1e-12)
        assert sample.whole.norm_ratio == pytest.approx(1.0, abs=1e-12)
    drift = analyze(tmp_path / "perf").shadow
    assert "The losses differ by at most 0 %." in drift.summary
    assert not drift.drifting
    SHADOW.path(tmp_path / "perf", 0).write_bytes(b"{}\n{}\n")
    report = analyze(tmp_path / "perf")
    assert report.shadow is None
    assert any("The shadow steps are left out" in note for note in report.notes)


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}], ids=["plain", "accumulation"])
def test_figures_against_a_pass_by_hand(tmp_path, options):
    """The first step of a bf16 training, whose random numbers are none, by hand."""

    def loss(self: Any, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(self.last(self.norm(self.first(batch[0])).relu()).float(), batch[1])

    train(tmp_path, make_net(loss=loss), perf={"shadow": 100}, precision="bf16-mixed", **options)
    (sample,) = samples(tmp_path)
    batch = next(iter(loader(12, 8)))
    found = []
    for autocast in (True, False):
        net = make_net(loss=loss)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast, cache_enabled=False):
            value = net.loss(batch)
        value.backward()
        found.append((float(value.detach()), {name: p.grad.double() for name, p in net.named_parameters()}))
    (own_loss, own), (exact_loss, exact) = found
    assert (sample.loss, sample.fp32_loss) == (pytest.approx(own_loss), pytest.approx(exact_loss))
    assert own_loss != exact_loss
    for layer in ("first", "norm", "last"):
        a, b = (torch.cat([each[f"{layer}.weight"].flatten(), each[f"{layer}.bias"]]) for each in (own, exact))
        assert sample.layers[layer].cosine == pytest.approx(float(a @ b / a.norm() / b.norm()), abs=1e-6)
        assert sample.layers[layer].norm_ratio == pytest.approx(float(a.norm() / b.norm()), abs=1e-6)


def test_a_drifting_layer_is_named(tmp_path):
    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
            return values.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return -gradient

    def loss(self: Any, batch: Any) -> torch.Tensor:
        values = self.first(batch[0])
        if torch.is_autocast_enabled("cpu"):  # a bug that only mixed precision has
            values = Reversed.apply(values)
        return nn.functional.cross_entropy(self.last(values.relu()).float(), batch[1])

    train(tmp_path, make_net(loss=loss), perf={"shadow": 2}, precision="bf16-mixed")
    drift = analyze(tmp_path / "perf").shadow
    assert [layer.name for layer in drift.drifting] == ["first"]
    assert any("first points elsewhere" in line for line in drift.summary)
    assert 0 < drift.cost_share < 1


def test_overflowing_gradients_are_unknown(tmp_path):
    def loss(self: Any, batch: Any) -> torch.Tensor:
        return self.last(self.first(batch[0]).relu()).float().sum() * float("inf")

    train(tmp_path, make_net(loss=loss), perf={"shadow": 6}, max_steps=2)
    (sample,) = samples(tmp_path)
    assert sample.loss is None
    assert sample.whole.cosine is None
    drift = analyze(tmp_path / "perf").shadow
    assert "No gradient could be compared" in drift.summary[0]


def test_manual_optimization_is_refused_before_the_first_step(tmp_path):
    def training_step(self: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append(batch_idx)

    module = make_net(training_step=training_step)
    module.automatic_optimization = False
    with pytest.raises(PrecisionError, match="shadow=5 needs automatic optimization and one device"):
        train(tmp_path, module, perf={"shadow": 5})
    assert module.seen == []
    assert_untapped(module.trainer)
    assert not any(optimizer._optimizer_step_post_hooks for optimizer in module.trainer.optimizers)


@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), (True, TypeError), (2.5, TypeError)])
def test_a_bad_interval_is_refused(value, error):
    with pytest.raises(error, match=f"shadow={value}"):
        PerfCallback(shadow=value)
