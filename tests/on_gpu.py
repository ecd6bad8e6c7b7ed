"""What needs a CUDA GPU. `test_gpu` runs this file in a process of its own, where there is one: it is no test by name.

By hand: ``LIGHTNING_PERF_TEST_ON_GPU=1 pytest tests/on_gpu.py``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

import lightning_perf
from lightning_perf import PerfCallback, PrecisionCallback
from lightning_perf.inference import MeasureOptions, measure_variants
from lightning_perf.inference.measurement.measure import Effort
from lightning_perf.tune.campaign import run_campaign
from lightning_perf.tune.result import Outcome
from lightning_perf.tune.settings import TuneSettings
from tests.callbacks.precision_training import Recipe, fit, make_net, same
from tests.callbacks.test_never_waits import STEP_HOOKS
from tests.callbacks.training import events, loader, make_module, make_trainer, samples, trace_files

# Of other libraries' warnings on a GPU no list can be complete.
pytestmark = pytest.mark.filterwarnings("default")

ON_GPU: dict[str, Any] = {"accelerator": "gpu", "devices": 1}


@pytest.fixture(autouse=True)
def nothing_fails_in_silence() -> Iterator[None]:
    """A fault of the callback is a warning and no error, here too."""
    with warnings.catch_warnings(record=True) as caught:
        yield
    assert [str(one.message) for one in caught if "PerfCallback" in str(one.message)] == []


def test_every_window_holds_the_devices_work_and_every_step_its_device_time(tmp_path: Path) -> None:
    # Windows without a step between them: CUPTI has to leave and to come back at once.
    callback = PerfCallback(
        skip_first=5, warmup=1, active=2, repeat=3, dirpath=tmp_path / "perf", report="none", profile_memory=True
    )
    make_trainer(tmp_path, callback, max_epochs=2, **ON_GPU).fit(make_module(), loader(100), loader(2))
    files = trace_files(tmp_path)
    kernels = [sum(event.get("cat") == "kernel" for event in events(file)) for file in files]
    assert len(kernels) == 3
    assert all(kernels), kernels
    steps = samples(tmp_path)
    assert len(steps) == 200
    timed = [step["device_ns"] for step in steps if step["device_ns"] is not None]
    assert len(timed) > 100
    assert min(timed) > 0
    lines = [json.loads(line) for line in (tmp_path / "perf" / "run.jsonl").read_text().splitlines()]
    facts, end = lines[0]["facts"], lines[-1]
    assert facts["device.type"] == "cuda"
    assert facts["device.name"] == torch.cuda.get_device_name()
    assert end["outcome"] == "finished"
    assert end["peak_device_bytes"] > 0
    report = lightning_perf.analyze(tmp_path / "perf")
    (compute,) = [row for row in report.ranks[0].breakdown.categories if row.name == "device_compute"]
    assert compute.mean_ns


@pytest.mark.parametrize("fused", [False, True])
def test_no_hook_of_a_step_waits_for_the_device(tmp_path: Path, fused: bool) -> None:
    """torch raises in a hook where it would wait. `PerfCallback` waits at the ends of its windows: here are none."""
    for callback in (
        PerfCallback(skip_first=10**9, dirpath=tmp_path / "perf", report="none"),
        PrecisionCallback("16-mixed", underflow_every_n_steps=2),
    ):
        called: list[str] = []

        def strict(name: str, hook: Any, called: list[str] = called) -> Any:
            def call(*arguments: Any, **options: Any) -> None:
                called.append(name)
                torch.cuda.set_sync_debug_mode("error")
                try:
                    hook(*arguments, **options)
                finally:
                    torch.cuda.set_sync_debug_mode("default")

            return call

        for name in STEP_HOOKS:
            setattr(callback, name, strict(name, getattr(callback, name)))
        fit(tmp_path, callback, make_net(Recipe(overflow_at=2, fused=fused)), **ON_GPU)
        assert set(called) == set(STEP_HOOKS)


@pytest.mark.parametrize("recipe", [Recipe(overflow_at=2), Recipe(overflow_at=2, fused=True)])
def test_fp16_by_the_callback_is_lightnings_own_bit_for_bit_and_is_followed(tmp_path: Path, recipe: Recipe) -> None:
    callback = PrecisionCallback("16-mixed", underflow_every_n_steps=1, locate_overflows=1)
    ours = fit(tmp_path, callback, make_net(recipe), **ON_GPU)
    stock = fit(tmp_path, None, make_net(recipe), precision="16-mixed", **ON_GPU)
    assert same(ours, stock)
    assert callback.loss_scale is not None
    assert callback.loss_scale.attempts == 6
    assert callback.loss_scale.skipped_steps == 1
    assert callback.loss_scale.events[1].origin is not None  # of a fused optimizer too
    assert ours.scaler is not None
    assert callback.loss_scale.final_scale == ours.scaler["scale"]
    assert callback.underflow is not None


def test_the_first_steps_are_replayed_in_true_fp32(tmp_path: Path) -> None:
    callback = PrecisionCallback("bf16-mixed", guard_steps=4, tf32="on")
    fit(tmp_path, callback, make_net(), **ON_GPU)
    assert callback.numerics is not None
    assert len(callback.numerics.fp32_losses) == 4
    assert callback.setting is not None
    assert callback.setting.fp32.tf32_matmul


class Small(nn.Module):
    """A network that takes a fresh process no time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head = nn.Linear(8, 5)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(pictures))


def test_variants_are_built_and_timed_on_the_device(tmp_path: Path) -> None:
    torch.manual_seed(0)
    names = ["channels-last", "fp16", "bf16"]
    document = measure_variants(
        Small(),
        inputs=torch.rand(8, 3, 16, 16),
        options=MeasureOptions(
            variants=names,
            batch_sizes=(1, 4),
            device="cuda",
            effort=Effort(seconds=0.3, rounds=3),
            out=tmp_path,
        ),
    )
    for name in ("eager", *names):
        row = document.row(name)
        assert row.reason is None
        assert [latency.device_ms is not None for latency in row.latencies] == [True, True]


def test_levers_of_a_gpu_are_tried() -> None:
    settings = TuneSettings(levers=("tf32", "cudnn-benchmark", "16-mixed"), rounds=6, window_s=0.05, minutes=5)
    result = run_campaign("tests.on_gpu:training", settings, print)
    assert {trial.lever: trial.outcome for trial in result.trials if trial.outcome is Outcome.FAILED} == {}
    assert all(trial.measured is not None for trial in result.trials)
    assert result.machine.device == "cuda"


def training() -> tuple[pl.LightningModule, Any, dict[str, Any]]:
    """What the levers are tried on."""
    from tests.tune.trainings import Data, Tiny

    return Tiny(), Data(), ON_GPU
