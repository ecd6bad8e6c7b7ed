"""The bound of a forward pass by hand, and the peak rates behind it: looked up, or measured."""

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from lightning_perf.inference.counting import count as counting
from lightning_perf.inference.counting.count import count_model, find_peaks, measure_peaks
from lightning_perf.inference.counting.document import Count, Peaks, Roofline, bound_latency

PEAKS = Peaks("a device", "float32", 1, flops_per_s=1e9, bandwidth_bytes_per_s=1e8, source="made up")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_the_bound_is_the_larger_of_compute_and_memory():
    module = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 10))
    bound = bound_latency(count_model(module, (8, 8, 8)), PEAKS)
    convolution, relu, linear = bound.layers
    assert convolution.compute_ms == pytest.approx(2 * 64 * 8 * 8 * 9 / 1e6)
    assert convolution.memory_ms == pytest.approx(4 * (2 * 512 + 8 * 8 * 9 + 8) / 1e5)
    assert (convolution.limit, convolution.bound_ms) == ("compute", convolution.compute_ms)
    assert (relu.limit, relu.bound_ms) == ("memory", pytest.approx(4 * 2 * 512 / 1e5))
    assert linear.limit == "memory"
    assert bound.compute_ms == pytest.approx(sum(layer.compute_ms for layer in bound.layers))
    weights = 8 * 8 * 9 + 8 + 512 * 10 + 10
    assert bound.memory_ms == pytest.approx(4 * (weights + 512 + 10) / 1e5)
    assert bound.bound_ms == max(bound.compute_ms, bound.memory_ms) == bound.memory_ms
    assert bound.layer_by_layer_ms == pytest.approx(sum(layer.bound_ms for layer in bound.layers))
    assert bound.layer_by_layer_ms > bound.bound_ms


def test_figures_that_are_not_above_zero_are_refused():
    count = count_model(nn.Linear(64, 64), (64,))
    bound = bound_latency(count, PEAKS)
    assert bound.efficiency(4 * bound.bound_ms) == pytest.approx(0.25)
    for latency in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="above 0"):
            bound.efficiency(latency)
    with pytest.raises(ValueError, match="above 0"):
        bound_latency(count, Peaks("a device", "float32", 1, 0.0, 1e8, "made up"))


def test_counts_and_bounds_survive_json_and_need_no_torch():
    count = count_model(nn.Linear(4, 4), (4,))
    bound = bound_latency(count, PEAKS)
    assert msgspec.json.decode(msgspec.json.encode(count), type=Count) == count
    assert msgspec.json.decode(msgspec.json.encode(bound), type=Roofline) == bound
    code = "import sys, lightning_perf.inference.results.tradeoff; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_convolutions_and_linear_layers_have_rates_of_their_own():
    """An A100 multiplies matrices in FP32 at 19.5 TFLOP/s, and convolves at the 156 TFLOP/s of TF32."""
    module = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 64, 10))
    bound = bound_latency(
        count_model(module, (8, 8, 8)), Peaks("A100", "float32", None, 19.5e12, 1555e9, "made up", 156e12)
    )
    convolution, linear = (layer for layer in bound.layers if layer.compute_ms)
    assert convolution.compute_ms == pytest.approx(1e3 * 2 * 64 * 8 * 8 * 9 / 156e12)
    assert linear.compute_ms == pytest.approx(1e3 * 2 * 512 * 10 / 19.5e12)
    assert bound.compute_ms == pytest.approx(convolution.compute_ms + linear.compute_ms)
    for rates in ((19.5e12, 156e12), (156e12, 19.5e12)):  # a layer of unknown kind is bound by the faster one
        found = Peaks("A100", "float32", None, rates[0], 1555e9, "made up", rates[1])
        assert found.flops_per_s_of("MultiheadAttention") == 156e12


def test_the_highest_of_several_rates_count():
    one, other = (Peaks("A CPU", "float32", 1, flops, speed, "measured here") for flops, speed in ((2, 3), (1, 4)))
    assert one.highest(other) == other.highest(one) == Peaks("A CPU", "float32", 1, 2, 4, "measured here")


def test_rates_are_work_by_the_best_time(monkeypatch: pytest.MonkeyPatch):
    times = iter([0.125, 0.5, 0.02, 0.01])  # two products, the copy, the dot product
    monkeypatch.setattr(counting, "_best_s", lambda call, device: (call(), next(times))[1])
    found = measure_peaks(CPU, 1, working_set_bytes=2**20)
    assert found.flops_per_s == 2 * 1024**3 / 0.5  # the small product reached half of that
    assert found.bandwidth_bytes_per_s == 2**20 / 0.01
    assert (found.dtype, found.threads) == ("float32", 1)
    assert found.source.startswith("measured here")


def test_random_matrices_are_multiplied_and_the_process_keeps_its_threads_and_random_numbers(
    monkeypatch: pytest.MonkeyPatch,
):
    seen: list[torch.Tensor] = []
    multiply = torch.mm

    def watched(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        seen.extend((left, right))
        return multiply(left, right, out=out)

    monkeypatch.setattr(counting, "SECONDS", 0.0)
    monkeypatch.setattr(torch, "mm", watched)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    found = find_peaks(CPU, 1, working_set_bytes=1)
    assert min(found.flops_per_s, found.bandwidth_bytes_per_s) > 0
    assert found.device
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    left, right = seen[:2]
    assert not torch.equal(left, right)
    for matrix in (left, right):
        assert len(set(matrix.flatten()[:10_000].tolist())) > 9_900
        assert matrix.std().item() == pytest.approx(1, rel=0.01)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    def choose(name: str, gigabytes: int) -> None:
        properties = SimpleNamespace(name=name, total_memory=gigabytes * 10**9)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    return choose


def test_a_known_gpu_is_looked_up_and_an_unknown_one_is_measured(
    gpu: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch
):
    gpu("NVIDIA H200", 150)
    found = find_peaks(CUDA, 1, torch.bfloat16)
    assert (found.flops_per_s, found.convolution_flops_per_s) == (989.4e12, None)
    assert (found.bandwidth_bytes_per_s, found.threads) == (4800e9, None)
    assert found.source.startswith("https://www.nvidia.com")
    gpu("NVIDIA Unheard", 1)
    asked = []
    monkeypatch.setattr(counting, "measure_peaks", lambda *arguments, **keywords: asked.append(arguments))
    find_peaks(CUDA, 1)
    assert asked == [(CUDA, 1, torch.float32)]


@pytest.mark.parametrize(
    ("name", "matmul", "convolution", "rates"),
    [
        ("NVIDIA H200", "ieee", "tf32", (67e12, 494.7e12)),  # PyTorch's default
        ("NVIDIA H200", "tf32", "tf32", (494.7e12, None)),
        ("NVIDIA H200", "ieee", "ieee", (67e12, None)),
        ("NVIDIA H200", "tf32", "ieee", (494.7e12, 67e12)),
        ("NVIDIA GeForce RTX 4090", "ieee", "tf32", (82.6e12, None)),  # its TF32 is no faster
    ],
)
def test_float32_has_the_rates_that_the_process_computes_in(
    name: str, matmul: str, convolution: str, rates: tuple[float, float | None], gpu: Callable[[str, int], None]
):
    gpu(name, 24 if "RTX" in name else 150)
    backends: Any = torch.backends
    backends = backends.cuda.matmul, backends.cudnn.conv
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend, precision in zip(backends, (matmul, convolution), strict=True):
            backend.fp32_precision = precision
        found = find_peaks(CUDA, 1)
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
    assert (found.flops_per_s, found.convolution_flops_per_s) == rates
