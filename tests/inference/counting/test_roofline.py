from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from torch import nn

from lightning_perf.inference.counting.count import count_model
from lightning_perf.inference.counting.document import Count
from lightning_perf.inference.counting.roofline import Peaks, Roofline, bound_latency

PEAKS = Peaks("a device", "float32", 1, flops_per_s=1e9, bandwidth_bytes_per_s=1e8, source="made up")


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


def test_efficiency_is_the_part_of_the_peak():
    bound = bound_latency(count_model(nn.Linear(64, 64), (64,)), PEAKS)
    assert bound.efficiency(4 * bound.bound_ms) == pytest.approx(0.25)
    for latency in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="above 0"):
            bound.efficiency(latency)


def test_peaks_must_be_above_zero():
    count = count_model(nn.Linear(4, 4), (4,))
    with pytest.raises(ValueError, match="above 0"):
        bound_latency(count, Peaks("a device", "float32", 1, 0.0, 1e8, "made up"))


def test_counts_and_bounds_survive_json_and_need_no_torch():
    count = count_model(nn.Linear(4, 4), (4,))
    bound = bound_latency(count, PEAKS)
    assert msgspec.json.decode(msgspec.json.encode(count), type=Count) == count
    assert msgspec.json.decode(msgspec.json.encode(bound), type=Roofline) == bound
    code = "import sys, lightning_perf.inference.counting.roofline as r; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_convolutions_and_linear_layers_have_rates_of_their_own() -> None:
    """An A100 multiplies matrices in FP32 at 19.5 TFLOP/s, and convolves at the 156 TFLOP/s of TF32."""
    module = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 64, 10))
    count = count_model(module, (8, 8, 8))
    bound = bound_latency(count, Peaks("A100", "float32", None, 19.5e12, 1555e9, "made up", 156e12))
    convolution, linear = (layer for layer in bound.layers if layer.compute_ms)
    assert convolution.compute_ms == pytest.approx(1e3 * 2 * 64 * 8 * 8 * 9 / 156e12)
    assert linear.compute_ms == pytest.approx(1e3 * 2 * 512 * 10 / 19.5e12)
    assert bound.compute_ms == pytest.approx(convolution.compute_ms + linear.compute_ms)


def test_a_layer_of_unknown_kind_is_bound_by_the_faster_rate() -> None:
    for rates in ((19.5e12, 156e12), (156e12, 19.5e12)):
        found = Peaks("A100", "float32", None, rates[0], 1555e9, "made up", rates[1])
        assert found.flops_per_s_of("MultiheadAttention") == 156e12
