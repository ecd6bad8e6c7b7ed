"""The memory at the peak by category, by module, and for other batch sizes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.analysis.model.memory import (
    MARGIN,
    AliveBlocks,
    BatchMemory,
    DeviceMemory,
    batch_memory,
    find_alive,
    memory,
)
from lightning_perf.analysis.model.memory_blocks import find_blocks
from lightning_perf.trace.concatenate import concatenate
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.tensors import TENSORS_KEY
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


Listed = dict[str, list[list[int]]]


def listed(start: Listed, end: Listed | None = None, available: dict[str, int] | None = None) -> dict[str, Any]:
    return {
        TENSORS_KEY: {"start": start, "end": start if end is None else end, "available_bytes": available or {}},
        "lightning_perf.loader": {"kind": "map", "batch_size": 10},
    }


def device_of(builder: TraceBuilder) -> DeviceMemory:
    value = known(memory(builder.build()))
    return value.devices[0]


def parts(device: DeviceMemory) -> dict[str, int]:
    return {part.category: part.bytes for part in device.parts}


def test_peak_of_a_gpu_by_category():
    start: Listed = {"parameters": [[0, 1, 100]], "gradients": [[0, 2, 100]], "optimizer_state": [[0, 3, 200]]}
    end: Listed = {"parameters": [[0, 1, 100]], "gradients": [[0, 7, 100]], "optimizer_state": [[0, 3, 200]]}
    builder = TraceBuilder(**listed(start, end)).step(1, 0, 100)
    builder.annotation(FETCH, 0, 5).memory(2, 30, address=4, allocated=1030, reserved=2000)
    builder.op("aten::linear", 10, 10).memory(12, 50, address=5, allocated=1080, reserved=2000)
    builder.memory(14, -100, address=2, allocated=980, reserved=2000)  # zero_grad
    builder.op("AddmmBackward0", 40, 20, thread=2000, forward_thread=1, sequence=1)
    builder.memory(42, 100, address=7, thread=2000, allocated=1080, reserved=2000)
    builder.memory(44, 20, address=8, thread=2000, allocated=1100, reserved=2048)  # the peak
    builder.memory(46, -20, address=8, thread=2000, allocated=1080, reserved=2048)
    builder.memory(48, -50, address=5, thread=2000, allocated=1030, reserved=2048)
    builder.memory(90, -30, address=4, allocated=1000, reserved=2048)
    gpu = device_of(builder)
    assert gpu.listed
    assert (gpu.peak_allocated_bytes, gpu.peak_step, gpu.before_recording_bytes) == (1100, 1, 600)
    assert parts(gpu) == {
        "parameters": 100,
        "gradients": 100,
        "optimizer state": 200,
        "activations": 50,
        "temporary": 20,
        "other": 30 + 600,
        "fragmentation": 2048 - 1100,
    }


def test_host_counts_listed_tensors_and_notices_cleared_gradients():
    start: Listed = {"parameters": [[-1, 1, 100]], "gradients": [[-1, 2, 100], [-1, 6, 7]]}
    end: Listed = {"parameters": [[-1, 1, 100]], "gradients": [[-1, 5, 100], [-1, 6, 7]]}
    host = {"device_type": 0, "device": -1}
    builder = TraceBuilder(**listed(start, end)).step(1, 0, 100)
    builder.op("aten::linear", 10, 10).memory(12, 50, address=4, **host)
    builder.annotation("Optimizer.zero_grad#SGD.zero_grad", 25, 5)  # the free at address 2 is not recorded
    builder.op("AddmmBackward0", 40, 20, thread=2000, forward_thread=1, sequence=1)
    builder.memory(42, 100, address=5, thread=2000, **host)
    builder.memory(48, -50, address=4, thread=2000, **host)
    device = device_of(builder)
    assert device.allocated.value == (257, 257, 207)
    assert (device.device, device.absolute, device.peak_allocated_bytes) == (None, False, 257)
    assert parts(device) == {"parameters": 100, "gradients": 107, "activations": 50}


def test_each_window_has_lists_of_its_own(tmp_path):
    host = {"device_type": 0, "device": -1}
    traces = []
    for number, (address, size) in enumerate(((1, 100), (2, 300))):
        builder = TraceBuilder(**listed({"parameters": [[-1, address, size]]}))
        begin = 1000 * number
        builder.step(number, begin, 100).memory(begin + 10, 5, address=9, **host)  # never freed in its window
        traces.append(read_trace(builder.write(tmp_path / f"{number}.json")))
    value = known(memory(concatenate(traces)))
    (device,) = value.devices
    assert (device.allocated.value, device.peak_step, parts(device)) == ((105, 305), 1, {"parameters": 300, "other": 5})


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        [],
        {"start": {}},
        {"start": {"parameters": [[0, 1]]}, "end": {}},
        {"start": {"parameters": [["0", 1, 2]]}, "end": {}},
        {"start": {"parameters": [[0, 1, 2**70]]}, "end": {}},
    ],
)
def test_damaged_lists_are_left_out(damaged):
    builder = TraceBuilder(**{TENSORS_KEY: damaged}).step(1, 0, 100).memory(10, 5)
    assert not device_of(builder).listed


def test_activations_by_module():
    builder = TraceBuilder(**listed({"parameters": [[0, 1, 100]]})).step(1, 0, 100)
    builder.python("nn.Module: Net_0", 5, 30).python("nn.Module: Linear_0", 10, 8).python("nn.Module: Linear_1", 20, 8)
    builder.op("aten::linear", 11, 2, sequence=1).memory(12, 40, address=4, allocated=40)
    builder.op("aten::linear", 21, 2, sequence=2).memory(22, 30, address=5, allocated=70)
    builder.op("aten::relu", 30, 2).memory(31, 5, address=6, allocated=75)
    builder.op("AddmmBackward0", 40, 20, thread=2000, forward_thread=1, sequence=2)
    builder.memory(42, 9, address=7, thread=2000, allocated=84)
    for time, address, size in ((50, 4, 40), (51, 5, 30), (52, 6, 5), (53, 7, 9)):
        builder.memory(time, -size, address=address, thread=2000, allocated=0)
    device = device_of(builder)
    assert [(row.name, row.depth, row.inner_modules, row.blocks, row.bytes) for row in device.activations] == [
        ("Net_0", 0, True, 3, 75),
        ("Linear_0", 1, False, 1, 40),
        ("Linear_1", 1, False, 1, 30),
    ]
    assert device.alive is not None
    assert [(row.module, row.phase, row.category, row.bytes) for row in device.alive if row.module != "Net_0"] == [
        (None, None, "parameters", 100),
        ("Linear_0", "forward", "activations", 40),
        ("Linear_1", "forward", "activations", 30),
        ("Linear_1", "backward", "temporaries", 9),  # linked by the sequence number
    ]


@dataclass
class Held:
    size: int
    kind: str


KIND_NAMES = {"parameters": "parameters", "gradients": "gradients", "optimizer_state": "optimizer state"}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from([*KIND_NAMES])), max_size=5),
    st.lists(st.integers(1, 8), min_size=1, max_size=25),
)
def test_parts_against_a_replay(older, addresses):
    """Older blocks are listed, and a new block is one of them where it is listed in the end."""
    held = {address: Held(1000 + address, kind) for address, kind in older}
    start: Listed = {kind: [] for kind in KIND_NAMES}
    for address, block in held.items():
        start[block.kind].append([0, address, block.size])
    outside, builder, snapshots = 5000, TraceBuilder(), []
    for n, address in enumerate(addresses):
        if address in held:
            size = -held.pop(address).size
        else:
            size = 2**n
            held[address] = Held(size, "new")
        builder.memory(n, size, address=address, allocated=outside + sum(b.size for b in held.values()))
        snapshots.append({a: Held(b.size, b.kind) for a, b in held.items()})
    end: Listed = {kind: [] for kind in KIND_NAMES}
    for address, block in held.items():
        if block.kind == "new":
            end["gradients"].append([0, address, block.size])
        else:
            end[block.kind].append([0, address, block.size])
    builder.top_level |= listed(start, end)
    device = device_of(builder)

    totals = [sum(block.size for block in snapshot.values()) for snapshot in snapshots]
    peak = totals.index(max(totals))
    assert device.peak_allocated_bytes == outside + totals[peak]
    expected = dict.fromkeys(KIND_NAMES, 0)
    for address, block in snapshots[peak].items():
        lives_on = block.kind == "new" and held.get(address) is not None and held[address].size == block.size
        kind = "gradients" if lives_on else block.kind
        if kind in expected:
            expected[kind] += block.size
    found = parts(device)
    assert {kind: found.get(name, 0) for kind, name in KIND_NAMES.items()} == expected
    assert sum(found.values()) == device.peak_allocated_bytes


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=30),
    st.integers(1, 64),
    st.integers(1, 10**7),
)
def test_batches_against_every_moment(moments, recorded, available):
    fixed, growing = (torch.tensor(column).numpy() for column in zip(*moments, strict=True))
    value = batch_memory(fixed + growing, growing, growing, recorded, available)
    if not growing.any():
        assert value is None
        return

    def highest(size: int) -> float:
        return max(f + g * size / recorded for f, g in moments)

    assert value.doubled_low_bytes == pytest.approx((1 - MARGIN) * highest(2 * recorded), abs=1.1)
    assert value.doubled_high_bytes == pytest.approx((1 + MARGIN) * highest(2 * recorded), abs=1.1)
    for largest, limit in (
        (value.largest_low, available / (1 + MARGIN)),
        (value.largest_high, available / (1 - MARGIN)),
    ):
        if largest is not None:
            assert largest == 0 or highest(largest) <= limit * (1 + 1e-9)
            assert highest(largest + 1) > limit * (1 - 1e-9)


def test_no_batch_is_too_large_when_memory_does_not_limit_it():
    ones = torch.ones(1, dtype=torch.int64).numpy()
    value = batch_memory(ones * 10, ones * 5, ones * 5, 1, 10**12)
    assert isinstance(value, BatchMemory)
    assert (value.largest_low, value.largest_high) == (None, None)
