from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_perf.inference.counting import peaks
from lightning_perf.inference.counting.peaks import find_peaks, measure_peaks

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "SECONDS", 0.0)


def test_rates_are_work_by_the_best_time(monkeypatch: pytest.MonkeyPatch):
    times = iter([0.125, 0.5, 0.02, 0.01])  # two products, the copy, the dot product
    monkeypatch.setattr(peaks, "_best_s", lambda call, device: (call(), next(times))[1])
    found = measure_peaks(CPU, 1, working_set_bytes=2**20)
    assert found.flops_per_s == 2 * 1024**3 / 0.5  # the small product reached half of that
    assert found.bandwidth_bytes_per_s == 2**20 / 0.01
    assert (found.dtype, found.threads) == ("float32", 1)
    assert found.source.startswith("measured here")


def test_this_machine_can_be_measured_and_keeps_its_threads_and_random_numbers():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    found = find_peaks(CPU, 1, working_set_bytes=1)
    assert found.flops_per_s > 0
    assert found.bandwidth_bytes_per_s > 0
    assert found.device
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    def choose(name: str, gigabytes: int) -> None:
        properties = SimpleNamespace(name=name, total_memory=gigabytes * 10**9)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    return choose


def test_a_known_gpu_is_looked_up(gpu: Callable[[str, int], None]):
    gpu("NVIDIA H200", 150)
    found = find_peaks(torch.device("cuda"), 1, torch.bfloat16)
    assert (found.flops_per_s, found.convolution_flops_per_s) == (989.4e12, None)
    assert found.bandwidth_bytes_per_s == 4800e9
    assert found.threads is None
    assert found.source.startswith("https://www.nvidia.com")


def test_an_unknown_gpu_is_measured(gpu: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch):
    gpu("NVIDIA Unheard", 1)
    asked = []
    monkeypatch.setattr(peaks, "measure_peaks", lambda *arguments, **keywords: asked.append(arguments))
    find_peaks(torch.device("cuda"), 1)
    assert asked == [(torch.device("cuda"), 1, torch.float32)]


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
) -> None:
    gpu(name, 24 if "RTX" in name else 150)
    backends: Any = torch.backends
    backends = backends.cuda.matmul, backends.cudnn.conv
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend, precision in zip(backends, (matmul, convolution), strict=True):
            backend.fp32_precision = precision
        found = find_peaks(torch.device("cuda"), 1)
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
    assert (found.flops_per_s, found.convolution_flops_per_s) == rates


def test_random_matrices_are_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    multiply = torch.mm

    def watched(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        seen.extend((left, right))
        return multiply(left, right, out=out)

    monkeypatch.setattr(torch, "mm", watched)
    measure_peaks(CPU, 1, working_set_bytes=1)
    left, right = seen[:2]
    assert not torch.equal(left, right)
    for matrix in (left, right):
        assert len(set(matrix.flatten()[:10_000].tolist())) > 9_900
        assert matrix.std().item() == pytest.approx(1, rel=0.01)
