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
    assert single.flops_per_s == 494.7e12  # TF32: the faster of what float32 may become
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
