"""`PerfCallback` and precision: its own settings, and a `PrecisionCallback` beside it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from lightning_perf import PerfCallback, analyze
from lightning_perf.callbacks import precision_callback as precision
from lightning_perf.callbacks.precision.switch import PrecisionError
from lightning_perf.callbacks.precision_callback import PrecisionCallback
from lightning_perf.report.document import PerfReport
from tests.callbacks.precision_training import MODES, Recipe, batches, fit, make_net, same, stock_options
from tests.callbacks.training import PACKAGES, make_trainer

pytestmark = pytest.mark.usefixtures("fp16_on_cpu")


def perf(**options: Any) -> PerfCallback:
    return PerfCallback(skip_first=0, warmup=1, active=2, report="none", **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PACKAGES)
def test_trains_bit_for_bit_and_reports_it(tmp_path, mode, name):
    recipe = Recipe(overflow_at=2, scheduler=True)
    ours = fit(tmp_path, perf(precision=mode), make_net(recipe, name), name=name)
    stock = fit(tmp_path, None, make_net(recipe, name), name=name, **stock_options(mode, name))
    assert same(ours, stock)
    assert ours.trainer.precision == "32-true"
    report = PerfReport.from_json((tmp_path / "perf" / "report.json").read_bytes())
    assert (report.precision.setting.precision, report.precision.setting.switched) == (mode, True)
    history = report.precision.loss_scale
    assert (history.skipped_steps if history is not None else None) == (1 if mode == "16-mixed" else None)
    assert (report.precision.underflow is not None) == (mode == "16-mixed")
    assert analyze(tmp_path / "perf").precision == report.precision


def test_keep_fp32_and_tf32_come_through(tmp_path):
    fit(tmp_path, perf(precision="bf16-mixed", keep_fp32=["fc"], tf32="on"), make_net())
    found = analyze(tmp_path / "perf").precision
    assert found.setting.keep_fp32 == ("fc",)
    assert found.setting.fp32.tf32_matmul


@pytest.mark.parametrize("mode", ["32-true", "16-mixed"])
def test_the_precision_of_a_trainer_is_reported_without_being_asked(tmp_path, mode):
    fit(tmp_path, perf(), make_net(Recipe(overflow_at=1)), **stock_options(mode) if mode == "16-mixed" else {})
    found = analyze(tmp_path / "perf").precision
    assert (found.setting.precision, found.setting.requested) == (mode, None)
    assert "FP32 is" in str(found.setting.fp32)
    assert (found.loss_scale.skipped_steps if found.loss_scale is not None else None) == (
        1 if mode == "16-mixed" else None
    )


@pytest.mark.parametrize("first", ["perf", "precision"])
def test_shares_folder_and_report_with_a_precision_callback(tmp_path, first):
    numbers, profile = PrecisionCallback("16-mixed", guard_steps=2), perf()
    order = [profile, numbers] if first == "perf" else [numbers, profile]
    ours = fit(tmp_path, order[0], make_net(), callbacks=[order[1]])
    assert same(ours, fit(tmp_path / "stock", None, make_net(), **stock_options("16-mixed")))
    assert [path.name for path in tmp_path.iterdir() if path.name != "stock"] == ["perf"]
    report = PerfReport.from_json((tmp_path / "perf" / "report.json").read_bytes())
    assert report.precision == numbers.result
    assert numbers.numerics is not None
    # On its own again, it has a folder of its own.
    fit(tmp_path / "alone", numbers, make_net(), max_steps=2)
    assert (tmp_path / "alone" / "perf" / "precision.json").exists()


def test_precision_given_twice_is_refused(tmp_path):
    with pytest.raises(PrecisionError, match="Give all of it to the PrecisionCallback"):
        fit(tmp_path, perf(precision="bf16-mixed"), make_net(), callbacks=[PrecisionCallback("bf16-mixed")])


def test_conflicts_are_errors_and_not_faults_of_profiling(tmp_path):
    module = make_net()
    with pytest.raises(PrecisionError, match="the Trainer is in '64-true'"):
        fit(tmp_path, perf(precision="16-mixed"), module, precision="64-true")
    assert module.losses == []
    with pytest.raises(ValueError, match="Give one of '16-mixed'"):
        perf(precision="half")


def test_validates_in_the_precision_and_saves_the_scaler_after_the_fit(tmp_path):
    callback = perf(precision="16-mixed")
    outcome = fit(tmp_path, callback, make_net())
    assert outcome.trainer._checkpoint_connector.dump_checkpoint()["MixedPrecision"] == outcome.scaler
    trainer = make_trainer(tmp_path, copy.deepcopy(callback))
    trainer.validate(outcome.module, batches(), verbose=False)
    assert str(outcome.module.output_dtype) == "torch.float16"


def test_what_only_watches_refuses_nothing(tmp_path):
    module = make_net()
    module.fc.bfloat16()
    fit(tmp_path, perf(), module, precision="bf16-mixed")
    assert len(module.losses) == 6
    with pytest.raises(PrecisionError, match="keeps weights in FP32"):
        fit(tmp_path, perf(precision="bf16-mixed"), make_net().bfloat16())


def test_fault_of_what_only_watches_is_one_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(precision, "read_fp32_arithmetic", lambda device: 1 / 0)
    with pytest.warns(RuntimeWarning, match="the precision is not reported, training continues") as caught:
        ours = fit(tmp_path, perf(), make_net(), **stock_options("16-mixed"))
    assert len([w for w in caught if w.category is RuntimeWarning]) == 1
    assert same(ours, fit(tmp_path, None, make_net(), **stock_options("16-mixed")))
    report = PerfReport.from_json((tmp_path / "perf" / "report.json").read_bytes())
    assert report.precision is None
    assert len(report.ranks) == 1
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, perf(precision="bf16-mixed"), make_net())
