from __future__ import annotations

import copy
import json
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from lightning_perf.callbacks.precision import switch as precision_switch
from lightning_perf.callbacks.precision.autograd_graph import read_graph
from lightning_perf.callbacks.precision_callback import Precision, PrecisionCallback
from tests.callbacks.precision_training import MODES, Recipe, batches, fit, make_net, same, stock_options
from tests.callbacks.training import PACKAGES, make_trainer, recording_logger

pytestmark = pytest.mark.usefixtures("fp16_on_cpu")


def everything(mode: Precision, **options: Any) -> PrecisionCallback:
    """All monitors on: none of them may change a bit of the training."""
    return PrecisionCallback(mode, underflow_every_n_steps=2, locate_overflows=9, diagnose="gradients", **options)


SETTINGS: dict[str, tuple[Recipe, dict[str, Any]]] = {
    "plain": (Recipe(), {}),
    "overflow": (Recipe(overflow_at=2, scheduler=True), {}),
    "clip by norm": (Recipe(), {"gradient_clip_val": 0.1}),
    "other package": (Recipe(), {"gradient_clip_val": 0.1}),
    "clip by value": (Recipe(), {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}),
    "accumulation": (Recipe(overflow_at=3), {"accumulate_grad_batches": 2}),
    "accumulation, clipped": (Recipe(), {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}),
    "manual": (Recipe(manual=True), {}),
    "manual, two optimizers": (Recipe(manual=True, optimizers=2, overflow_at=2), {}),
    "compiled": (Recipe(compiled=True), {}),
    "compiled, accumulation": (Recipe(compiled=True), {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}),
    "compiled, manual": (Recipe(compiled=True, manual=True, optimizers=2), {}),
    "fused": (Recipe(fused=True, overflow_at=2), {}),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_trains_bit_for_bit_as_a_trainer_with_that_precision(tmp_path, mode, setting):
    recipe, options = SETTINGS[setting]
    name = PACKAGES[setting == "other package"]
    callback = everything(mode, guard_steps=0 if recipe.manual else 2)
    ours = fit(tmp_path, callback, make_net(recipe, name), name=name, **options)
    stock = fit(tmp_path, None, make_net(recipe, name), name=name, **stock_options(mode, name), **options)
    plain = fit(tmp_path, None, make_net(recipe, name), name=name, max_steps=2, **options)
    assert same(ours, stock)
    assert ours.losses[: len(plain.losses)] != plain.losses
    if mode == "16-mixed":
        assert callback.loss_scale.attempts == ours.trainer.global_step  # which counts each optimizer's steps


@pytest.mark.parametrize("first", ["ours", "stock"])
@pytest.mark.parametrize("second", ["ours", "stock"])
def test_resumes_in_the_middle_from_either_kind_of_run(tmp_path, first, second):
    recipe = Recipe(overflow_at=1, scheduler=True)

    def train(kind: str, **options: Any) -> Any:
        if kind == "ours":
            return fit(tmp_path, everything("16-mixed"), make_net(recipe), **options)
        return fit(tmp_path, None, make_net(recipe), **stock_options("16-mixed"), **options)

    path = tmp_path / "half.ckpt"
    # After the fit, the Trainer has its own precision back.
    train(first, max_steps=4).trainer.save_checkpoint(path)
    assert torch.load(path, weights_only=False)["MixedPrecision"]["scale"] == 32768.0
    # Dropout draws from where the resumed run stands, so it is compared with another resumed one.
    assert same(train(second, max_steps=8, ckpt_path=path), train("stock", max_steps=8, ckpt_path=path))


def test_checkpoint_has_the_scaler_under_lightnings_name(tmp_path):
    outcome = fit(tmp_path, everything("16-mixed"), make_net(), enable_checkpointing=True)
    saved = next((tmp_path / "checkpoints").glob("*.ckpt"))
    state = torch.load(saved, weights_only=False)["MixedPrecision"]
    assert state["_growth_tracker"] == 6
    assert state == outcome.scaler


def test_fp16_on_a_cpu_becomes_bf16_with_one_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(precision_switch, "_FP16_ON_CPU", False)
    callback = PrecisionCallback("16-mixed")
    with pytest.warns(UserWarning, match="bf16-mixed is used instead") as caught:
        ours = fit(tmp_path, callback, make_net())
    assert len([w for w in caught if "is used instead" in str(w.message)]) == 1
    assert same(ours, fit(tmp_path, None, make_net(), precision="bf16-mixed"))
    assert (callback.setting.precision, callback.setting.requested) == ("bf16-mixed", "16-mixed")
    assert "16-mixed needs a GPU" in str(callback.setting.note)


@pytest.mark.parametrize("mode", MODES)
def test_validate_test_and_predict_run_in_it(tmp_path, mode):
    dtype = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}[mode]
    module = make_net()
    trainer = make_trainer(tmp_path, PrecisionCallback(mode))
    for stage in (trainer.validate, trainer.test):
        stage(module, batches(), verbose=False)
        assert module.output_dtype is dtype
    assert trainer.predict(module, batches())[0].dtype is dtype
    assert trainer.precision == "32-true"


def test_trainer_is_as_it_was_after_a_fit_and_after_an_error(tmp_path):
    callback = everything("16-mixed", keep_fp32=["fc"], tf32="on")
    module = make_net()
    before = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    outcome = fit(tmp_path, callback, module)
    plugin = outcome.trainer.precision_plugin

    def broken(batch: Any, batch_idx: int) -> None:
        assert outcome.trainer.precision == "16-mixed"
        assert torch.get_float32_matmul_precision() == "high"
        raise RuntimeError("broken")

    module.training_step = broken
    outcome.trainer.fit_loop.epoch_loop.max_steps = 12
    with pytest.raises(RuntimeError, match="broken"):
        outcome.trainer.fit(module, batches())
    assert outcome.trainer.precision == "32-true"
    assert type(outcome.trainer.precision_plugin) is type(plugin)
    assert "forward" not in vars(module.fc)
    assert (torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()) == before


def test_scaler_lives_on_in_a_second_fit(tmp_path):
    callback = everything("16-mixed")
    outcome = fit(tmp_path, callback, make_net(Recipe(overflow_at=1)))
    outcome.trainer.fit_loop.epoch_loop.max_steps = 9
    outcome.trainer.fit(outcome.module, batches())
    assert callback.loss_scale.scales[0] == 32768.0
    assert callback.loss_scale.attempts == 3


ADOPTED: dict[str, tuple[PrecisionCallback, dict[str, Any], tuple[str, bool, bool | None], float | None]] = {
    "the same": (PrecisionCallback("16-mixed"), {"init_scale": 1024.0}, ("16-mixed", False, False), 1024.0),
    "none given": (PrecisionCallback(), {"init_scale": 1024.0}, ("16-mixed", False, False), 1024.0),
    "fp32": (PrecisionCallback(), {}, ("32-true", False, None), None),
    "switched": (PrecisionCallback("bf16-mixed"), {}, ("bf16-mixed", True, True), None),
}


@pytest.mark.parametrize("case", ADOPTED)
def test_the_setting_names_the_precision_and_where_it_comes_from(tmp_path, case):
    callback, scaler, expected, scale = ADOPTED[case]
    options = stock_options("16-mixed", **scaler) if scaler else {}
    outcome = fit(tmp_path, callback, make_net(), **options)
    assert callback.setting is not None
    setting = callback.setting
    assert (setting.precision, setting.switched, setting.weight_cache) == expected
    if scale is None:
        assert (callback.loss_scale, callback.underflow) == (None, None)
    else:
        assert outcome.trainer.precision_plugin is options["plugins"][0]
        assert callback.loss_scale is not None
        assert callback.loss_scale.scales[0] == scale


def test_weight_used_many_times_is_cast_once(tmp_path) -> None:
    casts: dict[str, int] = {}

    def count(kind: str, callback: Any, **options: Any) -> None:
        module = make_net()
        linear = module.shared = nn.Linear(8, 8)

        def loss(batch: Any) -> torch.Tensor:
            x = batch[0]
            for _ in range(16):
                x = linear(x)
            casts[kind] = sum(read_graph(x.sum()).casts.values())
            return nn.functional.cross_entropy(x, batch[1])

        module.loss = loss
        fit(tmp_path, callback, module, max_steps=2, **options)

    count("ours", PrecisionCallback("bf16-mixed"))
    count("stock", None, precision="bf16-mixed")
    assert casts == {"ours": 2, "stock": 32}  # of weight and bias, as in plain torch


def test_weight_cache_is_off_where_the_no_grad_bug_occurs(tmp_path, monkeypatch):
    monkeypatch.setattr(precision_switch, "weight_cache_is_safe", lambda device, dtype: False)
    callback = PrecisionCallback("bf16-mixed")
    fit(tmp_path, callback, make_net())
    assert callback.setting.weight_cache is False


def test_weights_are_fresh_after_a_step_inside_a_manual_training_step(tmp_path):
    # With the cache on, the second forward pass would compute with the weights from before the first step.
    recipe = Recipe(manual=True, optimizers=2)
    callback = PrecisionCallback("bf16-mixed")
    ours = fit(tmp_path, callback, make_net(recipe))
    assert same(ours, fit(tmp_path, None, make_net(recipe), precision="bf16-mixed"))
    assert callback.setting.weight_cache is False


def test_copies_take_no_part_in_a_run(tmp_path) -> None:
    callback = everything("16-mixed", keep_fp32=["fc", nn.BatchNorm1d])
    copies: list[Any] = []
    module = make_net()

    def copy_it(*_: Any) -> None:
        copies.extend([copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))])

    module.on_train_batch_start = copy_it
    first = fit(tmp_path, callback, module, max_steps=2)
    for other in copies[:2]:
        second = fit(tmp_path, other, make_net(), max_steps=2)
        assert same(first, second)


def test_files_beside_the_report(tmp_path):
    callback = everything("16-mixed", guard_steps=2)
    fit(tmp_path, callback, make_net(Recipe(overflow_at=2)))
    (folder,) = tmp_path.rglob("perf")
    assert sorted(path.name for path in folder.glob("[!.]*")) == [
        "loss_scale.rank0.jsonl", "precision.json", "underflow.rank0.jsonl",
    ]  # fmt: skip
    summary = json.loads((folder / "precision.json").read_text())
    assert summary["loss_scale"]["skipped_steps"] == 1
    assert summary["numerics"]["precision"] == "16-mixed"


def test_unwritable_folder_is_one_warning(tmp_path):
    (tmp_path / "file").write_text("")
    callback = everything("16-mixed", dirpath=tmp_path / "file" / "below")
    with pytest.warns(RuntimeWarning, match="training continues"):
        outcome = fit(tmp_path, callback, make_net())
    assert callback.loss_scale.attempts == len(outcome.losses)


def test_failing_monitor_is_one_warning_and_the_others_go_on(tmp_path, monkeypatch):
    from lightning_perf.callbacks.numerics import underflow

    monkeypatch.setattr(underflow, "read_graph", lambda loss: 1 / 0)
    callback = everything("16-mixed")
    with pytest.warns(RuntimeWarning, match="gradients are not monitored any more"):
        ours = fit(tmp_path, callback, make_net())
    assert callback.loss_scale is not None
    assert same(ours, fit(tmp_path, None, make_net(), **stock_options("16-mixed")))


def test_logs_at_the_trainers_cadence(tmp_path) -> None:
    logger = recording_logger(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(
            tmp_path,
            everything("16-mixed"),
            make_net(Recipe(overflow_at=1)),
            logger=logger,
            log_every_n_steps=3,
        )
    ours = [(step, metrics) for step, metrics in logger.rows if "perf/loss_scale" in metrics]
    assert [step for step, _ in ours] == [2, 5]
    assert ours[-1][1] == {"perf/loss_scale": 32768.0, "perf/skipped_steps": 1.0, "perf/steps_since_scale_change": 4.0}
