"""What `PrecisionCallback` refuses: before the first step, and in words that say what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_perf.callbacks.precision.switch import PrecisionError
from lightning_perf.callbacks.precision_callback import PrecisionCallback
from tests.callbacks.precision_training import Recipe, fit, make_net, stock_options
from tests.callbacks.training import package

pytestmark = pytest.mark.usefixtures("fp16_on_cpu")


def half_weights() -> Any:
    module = make_net()
    module.fc.half()
    return module


def with_lbfgs() -> Any:
    module = make_net()
    module.configure_optimizers = lambda: torch.optim.LBFGS(module.parameters())
    return module


MixedPrecision: Any = package("lightning.pytorch.plugins").MixedPrecision


class OwnPlugin(MixedPrecision):
    """A user's own plugin."""


FP16: dict[str, Any] = {"precision": "16-mixed"}
BF16: dict[str, Any] = {"precision": "bf16-mixed"}

REFUSALS: list[tuple[str, dict[str, Any], Any, dict[str, Any]]] = [
    ("given precision='16-mixed', but the Trainer is in 'bf16-mixed'", FP16, make_net, BF16),
    ("the Trainer is in '16-true'", FP16, make_net, {"precision": "16-true"}),
    ("the Trainer is in 'bf16-true'", BF16, make_net, {"precision": "bf16-true"}),
    ("the Trainer is in '64-true'", BF16, make_net, {"precision": "64-true"}),
    ("Leave the precision out of the Trainer, or out of the callback", {"precision": "32-true"}, make_net, BF16),
    ("the Trainer is in 'bf16-mixed' .*OwnPlugin", FP16, make_net, {"plugins": [OwnPlugin("bf16-mixed", "cpu")]}),
    ("fc.weight is torch.float16.*Leave out .half", FP16, half_weights, {}),
    ("cannot work with LBFGS.*bf16-mixed", FP16, with_lbfgs, {}),
    ("keep_fp32 was given, but the Trainer is in '32-true'", {"keep_fp32": ["fc"]}, make_net, {}),
    ("keep_fp32 pattern 'linear' matches no layer", {**FP16, "keep_fp32": ["linear"]}, make_net, {}),
    (
        "init_scale=8.0 was given, but the Trainer is in 'bf16-mixed'",
        {"init_scale": 8.0},
        make_net,
        stock_options("bf16-mixed"),
    ),
    ("replayed in FP32 in automatic optimization", {"guard_steps": 2}, lambda: make_net(Recipe(manual=True)), {}),
]


@pytest.mark.parametrize(("message", "settings", "module", "options"), REFUSALS, ids=[row[0][:48] for row in REFUSALS])
def test_conflict_is_refused_before_the_first_step(tmp_path, message, settings, module, options):
    net = module()
    with pytest.raises(PrecisionError, match=message):
        fit(tmp_path, PrecisionCallback(**settings), net, **options)
    assert net.losses == []


def test_settings_that_cannot_be_are_refused_at_once():
    for arguments, message in [
        ({"precision": "fp16"}, "'fp16' is unknown. Give one of '16-mixed', 'bf16-mixed', '32-true'"),
        ({"precision": 16}, r"precision=16 is unknown\. Did you mean '16-mixed'\? Give one of"),
        ({"precision": "bf16"}, r"precision='bf16' is unknown\. Did you mean 'bf16-mixed'\? Give one of"),
        ({"tf32": True}, "give 'on', 'off' or None"),
        ({"precision": "32-true", "keep_fp32": ["fc"]}, "leave it out"),
        (
            {"precision": "bf16-mixed", "init_scale": 8.0},
            "init_scale=8.0 was given with precision='bf16-mixed', which scales no loss",
        ),
        ({"guard_steps": 1}, "give 2 or more"),
        ({"locate_overflows": -1}, "give 0 or more"),
    ]:
        with pytest.raises(ValueError, match=message):
            PrecisionCallback(**arguments)
    with pytest.raises(TypeError, match=r"keep_fp32=\['fc'\]"):
        PrecisionCallback("bf16-mixed", keep_fp32="fc")
