"""`PerfCallback(forecast=…)` in trainings: what it leaves, what it costs, and that it changes nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightning_perf import PerfCallback, analyze
from lightning_perf.analysis.precision.forecast import Forecast
from lightning_perf.callbacks.forecast.formats import FORMATS
from lightning_perf.callbacks.forecast.rounding import RECIPES
from lightning_perf.callbacks.forecast.sampling import ForecastBudget
from lightning_perf.run_files.numerics.samples import FORECAST, LayerSample
from tests.callbacks.training import failing, failing_step, loader, make_module, make_trainer


def perf(folder: Path, **options: Any) -> PerfCallback:
    return PerfCallback(skip_first=0, warmup=1, active=1, report="none", dirpath=folder, **options)


def train(tmp_path: Path, module: Any, callback: Any, batches: int = 40, **options: Any) -> Any:
    torch.manual_seed(3)
    trainer = make_trainer(tmp_path, callback, **options)
    trainer.fit(module, loader(batches))
    return trainer


def samples(tmp_path: Path) -> tuple[LayerSample, ...]:
    return FORECAST.read(FORECAST.path(tmp_path / "perf", 0))


def forecast_of(tmp_path: Path) -> Forecast:
    found = analyze(tmp_path / "perf").forecast
    assert found is not None
    return found


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_fit_leaves_samples(tmp_path, precision):
    ours = make_module()
    train(tmp_path, ours, perf(tmp_path / "perf", forecast=1.0), precision=precision)
    found = samples(tmp_path)
    assert {sample.layer for sample in found} == {"layer.0", "layer.2"}
    first = found[0]
    assert (first.rows, first.inputs, first.outputs) == (2, 4, 8)
    assert set(first.tensors) == {"weight", "activation", "gradient"}
    assert set(first.tensors["weight"].formats) == set(FORMATS)
    assert set(first.products) == {"forward", "input gradient", "weight gradient"}
    assert set(first.products["forward"]) == set(RECIPES)
    assert not any(layer._forward_hooks for layer in ours.modules())
    forecast = forecast_of(tmp_path)
    assert [layer.name for layer in forecast.layers] == ["layer.0", "layer.2"]
    assert forecast.advice[0] == "FP8 would be safe in all 2 layers."


def slow(module: Any, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), rate)


def test_outliers_make_a_layer_unsafe(tmp_path):
    def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        torch.manual_seed(batch_idx)
        x = torch.randn(32, 64)
        spikes = x.clone()
        spikes[0] = 3e6  # one sample sets the scale of the tensor, and flushes all others
        return (self.sound(x).square().mean() + self.spiky(spikes)[1:].square().mean()) * 1e-3

    module = make_module(training_step=training_step, configure_optimizers=lambda self: slow(self, 1e-6))
    module.sound, module.spiky = nn.Linear(64, 64), nn.Linear(64, 64)
    train(tmp_path, module, perf(tmp_path / "perf", forecast=1.0))
    forecast = forecast_of(tmp_path)
    assert forecast.recipes["fp8"].keep_out == ("spiky",)
    assert forecast.recipes["bf16"].keep_out == ()
    assert "Keep out spiky" in " ".join(forecast.advice)
    (spiky,) = (layer for layer in forecast.layers if layer.name == "spiky")
    assert spiky.tensors["activation"]["e4m3"].flushed > 0.9


def test_frozen_unused_checkpointed_and_shared_layers(tmp_path):
    def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        x = self.shared(self.shared(self.frozen(batch[0])).relu_())
        return checkpoint(self.checked, x, use_reentrant=False).sum()

    # It does not use its own layers.
    module = make_module(training_step=training_step, configure_optimizers=lambda self: slow(self, 0.01))
    module.frozen, module.shared, module.checked = (nn.Linear(4, 4) for _ in range(3))
    module.frozen.requires_grad_(False)
    train(tmp_path, module, perf(tmp_path / "perf", forecast=1.0))
    found = {sample.layer: sample for sample in samples(tmp_path)}
    assert set(found) == {"frozen", "shared", "checked"}
    assert set(found["frozen"].products) == {"forward"}
    assert len(found["shared"].products) == len(found["checked"].products) == 3


@pytest.mark.parametrize("accumulate", [1, 4])
def test_gradients_have_the_loss_scale_of_fp16_and_damaged_samples_become_a_note(tmp_path, accumulate):
    folder = tmp_path / "perf"
    train(tmp_path, make_module(), perf(folder, forecast=1.0), 80, accumulate_grad_batches=accumulate)
    found = samples(tmp_path)
    assert {sample.layer for sample in found} == {"layer.0", "layer.2"}
    for sample in found:
        assert math.log2(sample.gradient_scale).is_integer()
        assert sample.gradient_scale <= 65536
        assert sample.tensors["gradient"].largest * sample.gradient_scale <= 2 * 65504
    FORECAST.path(folder, 0).write_bytes(b"{}\n{}\n")
    report = analyze(folder)
    assert report.forecast is None
    assert any("The forecast of number formats is left out" in note for note in report.notes)


def test_compiled_models_are_left_out_with_a_message(tmp_path):
    module = make_module()
    module.layer = torch.compile(module.layer, backend="eager")
    with pytest.warns(RuntimeWarning, match="number formats are not forecast.*compiled or sharded"):
        train(tmp_path, module, perf(tmp_path / "perf", forecast=True), batches=4)
    assert not FORECAST.path(tmp_path / "perf", 0).exists()


def test_an_error_in_a_hook_is_one_warning(tmp_path, monkeypatch):
    sampler = failing(RuntimeError("broken sampler"))
    monkeypatch.setattr("lightning_perf.callbacks.forecast.monitor.MatrixSampler", sampler)
    ours, plain = make_module(), make_module()
    with pytest.warns(RuntimeWarning, match="broken sampler") as caught:
        train(tmp_path, ours, perf(tmp_path / "perf", forecast=1.0))
    assert len([each for each in caught if "broken sampler" in str(each.message)]) == 1
    train(tmp_path, plain, perf(tmp_path / "without"))
    assert analyze(tmp_path / "without").forecast is None
    assert not FORECAST.path(tmp_path / "without", 0).exists()
    assert all(map(torch.equal, ours.parameters(), plain.parameters()))


def test_a_failing_fit_keeps_its_samples(tmp_path):
    module = make_module(training_step=failing_step(ValueError("bad batch"), 30))
    with pytest.raises(ValueError, match="bad batch"):
        train(tmp_path, module, perf(tmp_path / "perf", forecast=1.0))
    assert {sample.layer for sample in samples(tmp_path)} == {"layer.0", "layer.2"}
    assert not any(layer._forward_hooks for layer in module.modules())


def test_further_samples_wait_for_the_budget(tmp_path):
    # Nothing is left of such a budget after the first sample, which is finished all the same.
    train(tmp_path, make_module(), perf(tmp_path / "perf", forecast=1e-9), batches=200)
    assert len(samples(tmp_path)) == 2
    train(tmp_path / "more", make_module(), perf(tmp_path / "more" / "perf", forecast=1.0), batches=200)
    assert len(samples(tmp_path / "more")) > 2


def test_the_budget_counts_and_refuses():
    now = [0]
    budget = ForecastBudget(0.01, torch.device("cpu"), now_ns=lambda: now[0])
    now[0] = 1000
    with budget.charged():
        now[0] += 5
    assert (budget.cost_ns, budget.elapsed_ns) == (5, 1005)
    assert budget.allows(5)
    assert not budget.allows(6)
    now[0] = 2000
    assert budget.allows(6)


@pytest.mark.parametrize("value", [0.0, -0.1, 1.5, math.nan, "yes"])
def test_a_bad_share_is_refused(value):
    error = TypeError if isinstance(value, str) else ValueError
    with pytest.raises(error, match=r"forecast=.*(must be|give) True, False, or a share"):
        PerfCallback(forecast=value)
