from __future__ import annotations

import msgspec
import pytest

from lightning_perf.analysis.model.memory import Memory, memory
from lightning_perf.trace.reader import read_trace
from tests.support.trace_builder import TraceBuilder


def test_totals_peak_and_headroom():
    value = memory(
        TraceBuilder()
        .gpu("GPU", totalGlobalMem=10_000)
        .step(3, 0, 100)
        .memory(10, 500, address=1, allocated=1500, reserved=4000)
        .memory(20, 700, address=2, allocated=2200, reserved=4000)
        .memory(30, -500, address=1, allocated=1700, reserved=4000)
        .memory(40, 100, address=3, allocated=1800, reserved=6000)
        .memory(50, 8, address=9, allocated=8, reserved=0, device_type=0, device=-1)
        .build()
    )
    assert value is not None
    gpu, host = value.devices
    assert (gpu.device, gpu.absolute, gpu.peak_allocated_bytes, gpu.peak_ns, gpu.peak_step) == (
        0,
        True,
        2200,
        20_000,
        3,
    )
    assert (gpu.peak_reserved_bytes, gpu.total_bytes, gpu.headroom_bytes) == (6000, 10_000, 4000)
    assert gpu.allocated.value == (1500, 2200, 1700, 1800)
    assert gpu.reserved is not None
    assert gpu.reserved.time_ns == (10_000, 20_000, 30_000, 40_000)
    assert gpu.before_recording_bytes == 1000
    assert (host.device, host.peak_allocated_bytes, host.reserved, host.headroom_bytes) == (None, 8, None, None)


def test_recording_without_totals_gives_lower_bounds():
    value = memory(
        TraceBuilder()
        .op("aten::mm", 0, 100)
        .memory(10, -300, address=0)
        .memory(20, 500, address=0)
        .memory(30, 100, address=0)
        .memory(40, -100, address=0)
        .build()
    )
    assert value is not None
    (gpu,) = value.devices
    assert (gpu.absolute, gpu.allocated.value, gpu.peak_allocated_bytes) == (False, (0, 500, 600, 500), 600)
    assert (gpu.alive, gpu.before_recording_bytes, gpu.reserved) == (None, None, None)


def test_optimizer_state_and_gradients_of_a_real_training(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.ReLU(), torch.nn.Linear(50, 10))
    optimizer = torch.optim.Adam(model.parameters())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        for n in range(2):
            with torch.profiler.record_function(f"ProfilerStep#{n}"):
                optimizer.zero_grad()
                model(torch.zeros(1, 100)).sum().backward()
                optimizer.step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    value = memory(read_trace(tmp_path / "trace.json"))
    assert value is not None
    (host,) = value.devices
    assert (host.device, host.absolute, host.before_recording_bytes) == (None, False, None)
    assert host.alive is not None
    sizes: dict[str, int] = {}
    for blocks in host.alive:
        sizes[blocks.category] = sizes.get(blocks.category, 0) + blocks.bytes
    parameters = list(model.parameters())
    # Two moments in FP32 a parameter, and a step count for each tensor.
    assert sizes["optimizer_state"] == 8 * sum(p.numel() for p in parameters) + 4 * len(parameters)


def test_no_allocator_events_give_nothing():
    assert memory(TraceBuilder().op("aten::mm", 0, 5).build()) is None


@pytest.mark.corpus
def test_real_traces(trace):
    value = memory(trace)
    assert (value is None) == (len(trace.memory) == 0)
    if value is None:
        return
    for device in value.devices:
        assert device.peak_allocated_bytes == max(device.allocated.value)
        assert min(device.allocated.value) >= 0
        if device.alive is not None and device.absolute:
            alive = sum(blocks.bytes for blocks in device.alive)
            assert alive + device.before_recording_bytes == device.peak_allocated_bytes
        if device.peak_reserved_bytes is not None:
            assert device.peak_reserved_bytes >= device.peak_allocated_bytes
    assert msgspec.json.decode(msgspec.json.encode(value), type=Memory) == value
