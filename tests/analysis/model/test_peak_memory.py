"""The memory at the peak by category, by module, and for other batch sizes."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.analysis.model.memory import MARGIN, BatchMemory, DeviceMemory, batch_memory, memory
from lightning_perf.trace.concatenate import concatenate
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.tensors import TENSORS_KEY
from tests.support.known import known
from tests.support.trace_builder import FETCH, TraceBuilder

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
