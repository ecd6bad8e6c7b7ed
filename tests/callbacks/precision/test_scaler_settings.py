"""Settings of the loss scaler: of the callback's own scaler, and of one that the Trainer brings."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_perf import PerfCallback
from lightning_perf.callbacks.precision.switch import PrecisionError, ScalerSettings
from lightning_perf.callbacks.precision_callback import PrecisionCallback
from tests.callbacks.precision_training import Recipe, fit, make_net, same, stock_options
from tests.callbacks.training import PACKAGES

pytestmark = pytest.mark.usefixtures("fp16_on_cpu")

SETTINGS: dict[str, Any] = {"init_scale": 512.0, "growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 2}


@pytest.mark.parametrize("name", PACKAGES)
def test_settings_train_as_a_scaler_built_with_them(tmp_path, name):
    recipe = Recipe(overflow_at=3)
    stock = fit(tmp_path, None, make_net(recipe, name), name=name, **stock_options("16-mixed", name, **SETTINGS))
    ours = fit(tmp_path, PrecisionCallback("16-mixed", **SETTINGS), make_net(recipe, name), name=name)
    adopted = fit(
        tmp_path, PrecisionCallback(**SETTINGS), make_net(recipe, name), name=name, **stock_options("16-mixed", name)
    )
    assert stock.scaler["growth_interval"] == 2
    assert same(ours, stock)
    assert same(adopted, stock)


def test_the_trainers_own_scaler_gets_its_settings_back(tmp_path):
    options = stock_options("16-mixed", growth_interval=7)
    scaler = options["plugins"][0].scaler
    fit(tmp_path, PrecisionCallback(growth_interval=2, backoff_factor=0.25), make_net(), **options)
    assert (scaler.get_growth_interval(), scaler.get_backoff_factor()) == (7, 0.5)


@pytest.mark.parametrize("stock", [False, True])
def test_a_disabled_scaler_scales_no_loss(tmp_path, stock):
    callback = PrecisionCallback(None if stock else "16-mixed", scaler_enabled=False)
    run = fit(tmp_path, callback, make_net(), **(stock_options("16-mixed") if stock else {}))
    assert run.scaler == {}
    assert callback.loss_scale is None


def test_a_disabled_scaler_can_be_enabled(tmp_path):
    callback = PrecisionCallback(scaler_enabled=True, init_scale=64.0)
    run = fit(tmp_path, callback, make_net(), **stock_options("16-mixed", enabled=False))
    assert run.scaler["scale"] == 64.0


def test_a_resumed_run_keeps_the_scale_and_takes_the_factors_of_the_callback(tmp_path):
    first = fit(tmp_path, PrecisionCallback("16-mixed", init_scale=128.0, growth_interval=50), make_net())
    path = tmp_path / "last.ckpt"
    first.trainer.save_checkpoint(path)
    second = fit(
        tmp_path,
        PrecisionCallback("16-mixed", init_scale=4.0, growth_interval=3),
        make_net(),
        max_steps=8,
        ckpt_path=str(path),
    )
    assert second.scaler["scale"] == 128.0
    assert second.scaler["growth_interval"] == 3


@pytest.mark.parametrize(
    ("error", "arguments", "message"),
    [
        (ValueError, {"init_scale": 0.0}, "init_scale=0.0 is out of range: give a finite number above 0"),
        (ValueError, {"growth_factor": 1.0}, "growth_factor=1.0 is out of range: give a finite number above 1"),
        (ValueError, {"backoff_factor": 1.5}, "backoff_factor=1.5 is out of range: give a number between 0 and 1"),
        (ValueError, {"growth_interval": 0}, "growth_interval=0 is out of range: give 1 or more steps"),
        (TypeError, {"growth_interval": 2.5}, "growth_interval=2.5 must be a whole number of steps"),
        (TypeError, {"growth_factor": True}, "growth_factor=True must be a number"),
        (TypeError, {"init_scale": "8"}, "init_scale='8' must be a number"),
        (TypeError, {"scaler_enabled": 1}, "scaler_enabled=1 must be True or False"),
    ],
)
def test_bad_settings_are_refused_at_once(error, arguments, message):
    with pytest.raises(error, match=message):
        PrecisionCallback("16-mixed", **arguments)


def test_settings_are_named_as_arguments_of_the_callback():
    assert str(ScalerSettings(growth_interval=3, enabled=False)) == "growth_interval=3, scaler_enabled=False"


@pytest.mark.parametrize("callback", [PerfCallback, PrecisionCallback])
@pytest.mark.parametrize("mode", ["16-mixed", "bf16-mixed"])
def test_a_fused_optimizer_with_clipping_is_refused_before_lightning_does(tmp_path, callback, mode):
    net = make_net(Recipe(fused=True))
    with pytest.raises(PrecisionError, match=r"fused AdamW.*fused=False"):
        fit(tmp_path, callback(), net, **stock_options(mode), gradient_clip_val=1.0)
    assert net.losses == []
    # Lightning itself raises in the first step.
    with pytest.raises(RuntimeError, match="does not allow for gradient clipping"):
        fit(tmp_path, None, make_net(Recipe(fused=True)), **stock_options(mode), gradient_clip_val=1.0)


def test_clipping_in_the_module_is_allowed_with_a_fused_optimizer_under_bf16(tmp_path):
    import torch

    def clip(self: Any, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)

    net = make_net(Recipe(fused=True))
    type(net).configure_gradient_clipping = clip
    fit(tmp_path, PrecisionCallback("bf16-mixed"), net, gradient_clip_val=1.0)
    assert len(net.losses) == 6
