"""What needs a CUDA GPU. `test_gpu` runs this file in a process of its own, where there is one: it is no test by name.

By hand: ``LIGHTNING_PERF_TEST_ON_GPU=1 pytest tests/on_gpu.py``.
"""

import gc
import json
import math
import statistics
import time
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
from lightning_perf.probe.replay.call_graph import CudaQueue
from lightning_perf.run_files.probe import read_probe
from lightning_perf.tune.campaign import run_campaign
from lightning_perf.tune.result import Outcome
from lightning_perf.tune.settings import TuneSettings
from tests.callbacks.precision_training import Recipe, fit, make_net
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
    # The loss of the batch that overflows is infinite, or NaN, which is not equal to itself.
    assert torch.equal(bits(ours.losses), bits(stock.losses))
    assert ours.scaler == stock.scaler
    assert all(torch.equal(a, b) for a, b in zip(ours.weights, stock.weights, strict=True))
    assert callback.loss_scale is not None
    assert callback.loss_scale.attempts == 6
    # Each skipped step halves the scale, which starts at 65536 and would first grow after 2000 steps. The planted
    # overflow is one of them; at so large a scale others may overflow as well.
    assert stock.scaler is not None
    skipped = round(math.log2(65536 / stock.scaler["scale"]))
    assert callback.loss_scale.skipped_steps == skipped >= 1
    assert callback.loss_scale.scales[-1] == stock.scaler["scale"]
    assert callback.underflow is not None
    origins = [event.origin for event in callback.loss_scale.events if getattr(event, "origin", None) is not None]
    assert len(origins) == 1  # of a fused optimizer too


def bits(losses: list[float]) -> torch.Tensor:
    """The losses as the integers with the same bits, all NaNs alike."""
    return torch.tensor(losses).nan_to_num(nan=12345.0).view(torch.int32)


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


class Sleeping(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that take their time, as from a slow disk."""

    def __init__(self, n: int, seconds: float) -> None:
        self.n, self.seconds = n, seconds

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.seconds)
        return torch.zeros(4), torch.tensor(index % 2)


def device_and_step_ms(folder: Path) -> tuple[float, float]:
    """Medians over the steps that the profiler did not record."""
    steps = [step for step in samples(folder)[5:] if not step["profiled"] and step["device_ns"] is not None]
    assert len(steps) >= 10
    return tuple(sorted(step[name] for step in steps)[len(steps) // 2] / 1e6 for name in ("device_ns", "step_ns"))


def test_an_input_bound_loop_shows_little_device_time(tmp_path: Path) -> None:
    """20 ms of waiting per step, and far less than that on the device."""
    callback = PerfCallback(skip_first=10**9, dirpath=tmp_path / "perf")
    data = torch.utils.data.DataLoader(Sleeping(40, 0.02), batch_size=1)
    make_trainer(tmp_path, callback, max_epochs=1, **ON_GPU).fit(make_module(), data)
    device_ms, step_ms = device_and_step_ms(tmp_path)
    assert step_ms >= 20
    assert device_ms < step_ms / 2


class Heavy(pl.LightningModule):
    """Matrix products that take the device tens of milliseconds and the host next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8192, 8192)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x = torch.ones(4096, 8192, device=self.device)
        for _ in range(4):
            x = self.layer(x)
        return x.mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-9)


@pytest.mark.alone
def test_a_loop_that_the_device_bounds_shows_it(tmp_path: Path) -> None:
    callback = PerfCallback(skip_first=10**9, dirpath=tmp_path / "perf")
    make_trainer(tmp_path, callback, max_epochs=1, **ON_GPU).fit(Heavy(), loader(40))
    device_ms, _ = device_and_step_ms(tmp_path)
    layer = nn.Linear(8192, 8192, device="cuda")
    x = torch.ones(4096, 8192, device="cuda")
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(4):
        layer(x)
    end.record()
    end.synchronize()
    forward_ms = begin.elapsed_time(end)
    # Forward and backward are three products for each of the forward's, except that the first input has no gradient.
    assert 2 * forward_ms < device_ms < 5 * forward_ms


def test_windows_around_cuda_graphs_twice_in_a_row(tmp_path: Path) -> None:
    """`torch.compile(mode="reduce-overhead")` replays CUDA graphs, which a profiler session must not break."""

    class Compiled(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.compile(
                nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2)), mode="reduce-overhead"
            )

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    for number in range(2):
        folder = tmp_path / str(number)
        callback = PerfCallback(skip_first=20, warmup=2, active=3, repeat=2, dirpath=folder / "perf")
        make_trainer(folder, callback, max_epochs=1, **ON_GPU).fit(Compiled(), loader(60))
        kernels = [sum(event.get("cat") == "kernel" for event in events(file)) for file in trace_files(folder)]
        assert len(kernels) == 2
        assert all(kernels), kernels


class Pictures(pl.LightningModule):
    """A ResNet-50 on random pictures that stay on the device."""

    def __init__(self, overflow_at: int | None = None) -> None:
        super().__init__()
        import torchvision

        self.net = torchvision.models.resnet50(num_classes=10)
        self.register_buffer("pictures", torch.randn(64, 3, 224, 224), persistent=False)
        self.overflow_at = overflow_at

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        logits = self.net(self.pictures)
        if batch_idx == self.overflow_at:
            logits = logits * 60_000
        return nn.functional.cross_entropy(logits, torch.zeros(64, dtype=torch.long, device=self.device))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.001, fused=True)


def peak_bytes(tmp_path: Path, callback: Any, module: pl.LightningModule, steps: int = 6) -> int:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    make_trainer(tmp_path, callback, max_epochs=1, **ON_GPU).fit(module, loader(steps))
    return torch.cuda.max_memory_allocated()


def test_the_watch_over_numerics_costs_little_memory_at_the_size_of_a_resnet(tmp_path: Path) -> None:
    plain = peak_bytes(tmp_path, PrecisionCallback("16-mixed"), Pictures())
    guard = PrecisionCallback("16-mixed", guard_steps=4)
    guarded = peak_bytes(tmp_path, guard, Pictures())
    assert guard.numerics is not None
    # The replay runs in FP32, so its activations take twice the memory. Copies of all layers' outputs would add more.
    assert guarded < 2.6 * plain
    locator = PrecisionCallback("16-mixed", locate_overflows=1)
    located = peak_bytes(tmp_path, locator, Pictures(overflow_at=3))
    assert locator.loss_scale is not None
    assert any(getattr(event, "origin", None) is not None for event in locator.loss_scale.events)
    assert located < 2.6 * plain


def test_the_peak_memory_of_a_fit_is_its_own(tmp_path: Path) -> None:
    """A small fit after a large one in the same process."""
    for name, module in (("large", Heavy()), ("small", make_module())):
        folder = tmp_path / name
        callback = PerfCallback(skip_first=10**9, dirpath=folder / "perf")
        make_trainer(folder, callback, max_epochs=1, **ON_GPU).fit(module, loader(8))
        module.cpu()
        del module
        gc.collect()
    peaks = [
        json.loads((tmp_path / name / "perf" / "run.jsonl").read_text().splitlines()[-1])["peak_device_bytes"]
        for name in ("large", "small")
    ]
    assert peaks[0] > 500e6
    assert peaks[1] < peaks[0] / 4


def test_nvml_answers_for_the_trainings_device(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    from lightning_perf.callbacks.run_record.device_health import DeviceHealth, device_uuids

    trainer = make_trainer(tmp_path, None, **ON_GPU)
    uuids = device_uuids([trainer.strategy.root_device])
    assert len(uuids) == 1
    health = DeviceHealth(uuids)
    health.start()
    own = health.finish()
    assert health.errors() == []
    assert own is not None
    assert (own.clock_limit_mhz or 0) > 100
    assert (own.power_limit_w or 0) > 10


@pytest.mark.alone
def test_a_probe_times_kernels_in_other_settings_and_replays_the_calls_from_a_graph(tmp_path: Path) -> None:
    callback = PerfCallback(skip_first=5, active=3, repeat=1, dirpath=tmp_path / "perf", report="none", probe=True)
    make_trainer(tmp_path, callback, max_epochs=1, **ON_GPU).fit(make_module(), loader(40))
    probe = read_probe(tmp_path / "perf" / "probe.json")
    assert probe.same_device
    assert probe.launch_ns is not None
    assert 500 < probe.launch_ns < 1e6
    assert probe.covered_ns > 0.5 * probe.operator_ns
    assert {"bf16", "fp16", "tf32", "batch"} <= {change.name for change in probe.changes}
    graph = probe.change("cuda-graph")
    assert graph is not None
    assert graph.rounds >= 3
    # The host takes most of a step of such a small network, and a graph saves it.
    assert 0.05 * probe.step_ns < graph.saving_ns < probe.step_ns


@pytest.mark.alone
def test_a_replay_takes_the_device_no_longer_than_launches_and_the_host_less() -> None:
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(50))).cuda()
    inputs = torch.ones(8, 64, device="cuda")
    queue = CudaQueue()

    def run() -> None:
        with torch.no_grad():
            layers(inputs)

    run()
    replay = queue.capture(run)
    launched, queued, replayed = (
        statistics.median(measure(work) for _ in range(9))
        for measure, work in ((queue.launched_ns, run), (queue.queued_ns, run), (queue.queued_ns, replay))
    )
    assert replayed < 1.2 * queued
    assert queued < launched
    with pytest.raises(RuntimeError, match="synchroniz"), queue.without_waits():
        inputs.sum().item()


@pytest.mark.alone
def test_levers_are_tried_where_memory_holds_one_training_only() -> None:
    """The training takes more than half of the memory: its twin must not make it fail."""
    free_bytes, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(max(free_bytes - 12_000_000_000, 0), dtype=torch.uint8, device="cuda")
    try:
        settings = TuneSettings(levers=("tf32",), rounds=6, window_s=0.05, minutes=3)
        result = run_campaign("tests.on_gpu:large_training", settings, print)
    finally:
        del ballast
        torch.cuda.empty_cache()
    assert result.trials
    assert all(trial.outcome is not Outcome.FAILED for trial in result.trials)


class Large(Heavy):
    """Weights, gradients, and momentum of 7 GB altogether."""

    def __init__(self) -> None:
        super().__init__()
        self.ballast = nn.Parameter(torch.zeros(600_000_000))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch, batch_idx) + 0.0 * self.ballast[:1024].sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-9, momentum=0.9)


def large_training() -> tuple[pl.LightningModule, Any, dict[str, Any]]:
    """A training of which the memory holds only one."""
    from tests.tune.trainings import Data

    return Large(), Data(), ON_GPU
