from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from lightning_perf.inference.counting import peaks
from lightning_perf.inference.counting.peaks import find_peaks, measure_peaks

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "SECONDS", 0.0)


def test_rates_are_work_by_the_best_time(monkeypatch: pytest.MonkeyPatch):
    times = iter([0.5, 0.02, 0.01])  # the product, the copy, the dot product
    monkeypatch.setattr(peaks, "_best_s", lambda call, device: (call(), next(times))[1])
    found = measure_peaks(CPU, 1, working_set_bytes=2**20)
    assert found.flops_per_s == 2 * 1024**3 / 0.5
    assert found.bandwidth_bytes_per_s == 2**20 / 0.01
    assert (found.dtype, found.threads) == ("float32", 1)
    assert found.source.startswith("measured here")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_this_machine_can_be_measured_and_keeps_its_threads(dtype: torch.dtype):
    before = torch.get_num_threads()
    found = find_peaks(CPU, 1, dtype, working_set_bytes=1)
    assert found.flops_per_s > 0
    assert found.bandwidth_bytes_per_s > 0
    assert found.device
    assert torch.get_num_threads() == before


def test_a_known_gpu_is_looked_up(monkeypatch: pytest.MonkeyPatch):
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=150 * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    single, half = (find_peaks(torch.device("cuda"), 1, dtype) for dtype in (torch.float32, torch.bfloat16))
    # By default PyTorch computes FP32 convolutions in TF32, and FP32 matrix products not.
    assert (single.flops_per_s, single.convolution_flops_per_s) == (67e12, 494.7e12)
    assert half.convolution_flops_per_s is None
    assert half.flops_per_s == 989.4e12
    assert single.bandwidth_bytes_per_s == 4800e9
    assert single.threads is None
    assert single.source.startswith("https://www.nvidia.com")


def test_an_unknown_gpu_is_measured(monkeypatch: pytest.MonkeyPatch):
    properties = SimpleNamespace(name="NVIDIA Unheard", total_memory=10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    asked = []
    monkeypatch.setattr(peaks, "measure_peaks", lambda *arguments, **keywords: asked.append(arguments))
    find_peaks(torch.device("cuda"), 1)
    assert asked == [(torch.device("cuda"), 1, torch.float32)]


@pytest.mark.parametrize(
    ("matmul", "convolution", "rates"),
    [
        ("ieee", "tf32", (67e12, 494.7e12)),
        ("tf32", "tf32", (494.7e12, None)),
        ("ieee", "ieee", (67e12, None)),
        ("tf32", "ieee", (494.7e12, 67e12)),
    ],
)
def test_float32_has_the_rates_that_the_process_computes_in(
    matmul: str, convolution: str, rates: tuple[float, float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=150 * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(peaks, "_fp32_precisions", lambda: (matmul, convolution))
    found = find_peaks(torch.device("cuda"), 1)
    assert (found.flops_per_s, found.convolution_flops_per_s) == rates


def test_a_device_whose_tf32_is_no_faster_has_one_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="NVIDIA GeForce RTX 4090", total_memory=24 * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    found = find_peaks(torch.device("cuda"), 1)
    assert (found.flops_per_s, found.convolution_flops_per_s) == (82.6e12, None)


def test_random_matrices_are_multiplied_and_the_generator_goes_on_undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    multiply = torch.mm

    def watched(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        seen.extend((left, right))
        return multiply(left, right, out=out)

    monkeypatch.setattr(torch, "mm", watched)
    before = torch.get_rng_state()
    measure_peaks(CPU, 1, working_set_bytes=1)
    assert torch.equal(torch.get_rng_state(), before)
    left, right = seen[:2]
    assert not torch.equal(left, right)
    for matrix in (left, right):
        assert len(set(matrix.flatten()[:10_000].tolist())) > 9_900
        assert matrix.std().item() == pytest.approx(1, rel=0.01)
