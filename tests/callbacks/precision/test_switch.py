from __future__ import annotations

import importlib
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_perf.callbacks.precision.switch import (
    PrecisionError,
    PrecisionSwitch,
    check_device,
    check_fit,
    check_strategy,
    plugin_module,
    weight_cache_is_safe,
)
from tests.callbacks.precision_training import make_net
from tests.callbacks.training import PACKAGES, make_trainer


class Unknown:
    """A strategy of nobody's."""


def strategy_classes(name: str) -> dict[str, Any]:
    strategies = importlib.import_module(f"{name}.strategies")
    single_xla = importlib.import_module(f"{name}.strategies.single_xla").SingleDeviceXLAStrategy

    ddp: Any = strategies.DDPStrategy

    class HooksOnly(ddp):
        def barrier(self, name: str | None = None) -> None: ...

    class OwnBackward(ddp):
        def backward(self, *args: Any, **kwargs: Any) -> Any: ...

    return {
        "single": strategies.SingleDeviceStrategy,
        "ddp": ddp,
        "user's ddp": HooksOnly,
        "fsdp": strategies.FSDPStrategy,
        "deepspeed": strategies.DeepSpeedStrategy,
        "model parallel": strategies.ModelParallelStrategy,
        "xla": strategies.XLAStrategy,
        "single xla": single_xla,
        "user's backward": OwnBackward,
        "unknown": Unknown,
    }


@pytest.mark.parametrize("name", PACKAGES)
def test_only_strategies_that_leave_precision_to_the_plugin_are_switched(name):
    for kind, strategy in strategy_classes(name).items():
        trainer = SimpleNamespace(strategy=object.__new__(strategy))
        if kind in ("single", "ddp", "user's ddp"):
            check_strategy(trainer, "16-mixed")
            continue
        with pytest.raises(PrecisionError, match=r"handles precision itself.*Trainer\(precision='16-mixed'\)"):
            check_strategy(trainer, "16-mixed")


def test_device_without_the_type_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "device", lambda device: pytest.MonkeyPatch().context())
    with pytest.raises(PrecisionError, match=r"Tesla V100 does not compute in bf16\. Give precision='16-mixed'"):
        check_device(torch.device("cuda"), "bf16-mixed")
    check_device(torch.device("cuda"), "16-mixed")
    with pytest.raises(PrecisionError, match="no autocast for the device meta"):
        check_device(torch.device("meta"), "bf16-mixed")


@pytest.mark.parametrize(("name", "other"), [PACKAGES, PACKAGES[::-1]])
def test_plugin_is_of_the_trainers_package_and_a_foreign_one_is_refused(tmp_path, name, other):
    trainer = make_trainer(tmp_path, None, name)
    trainer.strategy.connect(make_net(name=name))
    switch = PrecisionSwitch("bf16-mixed")
    switch.install(trainer)
    own, foreign = (importlib.import_module(f"{p}.plugins").MixedPrecision for p in (name, other))
    assert isinstance(trainer.precision_plugin, own)
    assert type(trainer.precision_plugin).__qualname__ == "MixedPrecision"
    switch.undo()
    trainer.strategy.precision_plugin = foreign("bf16-mixed", "cpu")
    with pytest.raises(PrecisionError, match=f"{other}.plugins.precision.amp.MixedPrecision"):
        PrecisionSwitch("bf16-mixed").install(trainer)


def test_undoing_leaves_a_plugin_alone_that_someone_else_put_there(tmp_path):
    trainer = make_trainer(tmp_path, None)
    trainer.strategy.connect(make_net())
    switch = PrecisionSwitch("bf16-mixed")
    switch.install(trainer)
    switch.install(trainer)
    other = trainer.strategy.precision_plugin = importlib.import_module("lightning.pytorch.plugins").DoublePrecision()
    switch.undo()
    switch.undo()
    assert trainer.precision_plugin is other


def test_checks_ask_only_what_the_precision_needs():
    module = make_net()
    optimizers = [torch.optim.LBFGS(module.body.parameters())]
    trainer = SimpleNamespace(optimizers=optimizers, gradient_clip_val=None, precision_plugin=None)
    module.fc.half().requires_grad_(False)
    check_fit(trainer, module, "bf16-mixed", requested=True)
    check_fit(trainer, module, "16-mixed", requested=False)
    with pytest.raises(PrecisionError, match="LBFGS"):
        check_fit(trainer, module, "16-mixed", requested=True)
    module.fc.requires_grad_(True)
    check_fit(trainer, module, "32-true", requested=True)
    with pytest.raises(PrecisionError, match=r"fc.weight is torch.float16.*Leave out .half"):
        check_fit(trainer, module, "bf16-mixed", requested=True)


def test_error_crosses_processes_whole():
    error = PrecisionError("a problem", "Do something")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.problem, copy.action) == ("a problem. Do something.", "a problem", "Do something")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_probe_finds_this_torch_sound_and_draws_no_random_numbers(dtype):
    before = torch.get_rng_state()
    assert weight_cache_is_safe(torch.device("cpu"), dtype)
    assert torch.equal(torch.get_rng_state(), before)


def test_probe_finds_the_bug(monkeypatch):
    plain, cached = torch.nn.functional.linear, {}

    def linear(inputs, weight):
        # As torch once did: what was cast without gradients is used again with them.
        return cached.setdefault(id(weight), plain(inputs, weight).detach())

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    assert not weight_cache_is_safe(torch.device("cpu"), torch.bfloat16)


def test_trainers_of_other_packages_are_named():
    with pytest.raises(TypeError, match=r"builtins\.object is no Trainer of lightning\.pytorch or pytorch_lightning"):
        plugin_module(object())
