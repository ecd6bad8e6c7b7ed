import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.analysis.model.memory import AliveBlocks, find_alive, memory
from lightning_perf.analysis.model.memory_blocks import find_blocks
from lightning_perf.trace.reader import read_trace
from tests.support.known import known
from tests.support.trace_builder import FETCH, TraceBuilder


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
    gpu, host = value.devices
    assert (gpu.device, gpu.absolute) == (0, True)
    assert (gpu.peak_allocated_bytes, gpu.peak_ns, gpu.peak_step) == (2200, 20_000, 3)
    assert (gpu.peak_reserved_bytes, gpu.total_bytes, gpu.headroom_bytes) == (6000, 10_000, 4000)
    assert gpu.allocated.value == (1500, 2200, 1700, 1800)
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
    (gpu,) = value.devices
    assert (gpu.absolute, gpu.allocated.value, gpu.peak_allocated_bytes) == (False, (0, 500, 600, 500), 600)
    assert (gpu.alive, gpu.before_recording_bytes, gpu.reserved) == (None, None, None)


def test_optimizer_state_and_gradients_of_a_real_training(tmp_path) -> None:
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
    value = known(memory(read_trace(tmp_path / "trace.json")))
    (host,) = value.devices
    assert (host.device, host.absolute, host.before_recording_bytes) == (None, False, None)
    assert host.alive is not None
    sizes: dict[str, int] = {}
    for blocks in host.alive:
        sizes[blocks.category] = sizes.get(blocks.category, 0) + blocks.bytes
    parameters = list(model.parameters())
    # Two moments in FP32 a parameter, and a step count for each tensor.
    assert sizes["optimizer_state"] == 8 * sum(p.numel() for p in parameters) + 4 * len(parameters)


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


ENGINE = 2000


def alive(trace, moment=None):
    rows = np.flatnonzero(trace.memory.device == 0)
    return find_alive(trace, find_blocks(trace, rows, None, -1), len(rows) - 1 if moment is None else moment)[0]


def test_blocks_are_told_apart_by_birth_and_death():
    builder = (
        TraceBuilder()
        .annotation(FETCH, 0, 10)
        .memory(5, 1, address=1)
        .op("aten::conv2d", 20, 20)
        .op("aten::empty", 22, 4)
        .memory(24, 2, address=2)  # freed in backward
        .memory(25, 4, address=3)  # freed in forward
        .memory(26, 8, address=4)  # not freed
        .op("ConvolutionBackward0", 60, 20, thread=ENGINE, forward_thread=1, sequence=1)
        .memory(62, 16, address=5, thread=ENGINE)  # freed after the optimizer began
        .memory(63, 32, address=6, thread=ENGINE)  # freed before
        .memory(45, 0, address=99)
        .annotation("Optimizer.step#SGD.step", 100, 50)
        .op("aten::zeros_like", 105, 10)
        .memory(110, 64, address=7)  # not freed
        .memory(112, 128, address=8)  # freed in the step
        .memory(50, -4, address=3)
        .memory(70, -2, address=2, thread=ENGINE)
        .memory(85, -32, address=6)
        .memory(140, -128, address=8)
        .memory(200, -16, address=5)
    )
    trace = builder.build()
    times = trace.memory.time_ns.tolist()
    assert alive(trace, times.index(26_000)) == (
        AliveBlocks("aten::conv2d", "unknown", 1, 8, "forward"),
        AliveBlocks("aten::conv2d", "temporaries", 1, 4, "forward"),
        AliveBlocks("aten::conv2d", "activations", 1, 2, "forward"),
        AliveBlocks(None, "inputs", 1, 1, "fetch"),
    )
    assert alive(trace, times.index(63_000))[:2] == (
        AliveBlocks("ConvolutionBackward0", "temporaries", 1, 32, "backward"),
        AliveBlocks("ConvolutionBackward0", "gradients", 1, 16, "backward"),
    )
    assert alive(trace, times.index(112_000))[:2] == (
        AliveBlocks("aten::zeros_like", "temporaries", 1, 128, "optimizer"),
        AliveBlocks("aten::zeros_like", "optimizer_state", 1, 64, "optimizer"),
    )


def test_what_a_closure_of_the_optimizer_allocates_is_not_the_optimizers():
    builder = TraceBuilder().step(1, 0, 300).annotation("Optimizer.step#SGD.step", 10, 240)
    builder.op("aten::conv2d", 20, 20).memory(24, 1, address=1)  # freed in backward
    builder.op("autograd::engine::evaluate_function: ConvolutionBackward0", 60, 20, thread=ENGINE)
    builder.memory(62, 2, address=2, thread=ENGINE)  # alive when the update begins
    builder.memory(70, -1, address=1, thread=ENGINE)
    builder.op("aten::zeros_like", 105, 10).memory(110, 4, address=3)  # not freed
    trace = builder.memory(260, -2, address=2).build()
    assert {row.category: row.bytes for row in alive(trace, trace.memory.time_ns.tolist().index(24_000))} == {
        "activations": 1
    }
    assert {row.category: row.bytes for row in alive(trace, trace.memory.time_ns.tolist().index(110_000))} == {
        "gradients": 2,
        "optimizer_state": 4,
    }


def test_inference_has_no_activations():
    trace = TraceBuilder().op("aten::mm", 0, 10).memory(5, 10, address=1).memory(20, -10, address=1).build()
    assert alive(trace, 0) == (AliveBlocks("aten::mm", "temporaries", 1, 10, "forward"),)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=20), st.integers(0, 19))
def test_alive_blocks_against_a_replay(addresses, moment):
    builder, held, levels = TraceBuilder(), {}, []
    for n, address in enumerate(addresses):
        size = -held.pop(address) if address in held else 2**n
        if size > 0:
            held[address] = size
        builder.memory(n, size, address=address)
        levels.append(dict(held))
    moment = min(moment, len(addresses) - 1)
    found = alive(builder.build(), moment)
    assert sum(row.bytes for row in found) == sum(levels[moment].values())
    assert sum(row.blocks for row in found) == len(levels[moment])
