"""Recordings of torch 2.15: named regions of CUDA graphs, and hardware counters."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.analysis.kernels.efficiency import CounterRow, hardware_counters
from lightning_perf.analysis.kernels.kernel_table import GraphRegion, graph_regions
from lightning_perf.trace.concatenate import concatenate
from lightning_perf.trace.reader import read_trace
from tests.support.known import known
from tests.support.trace_builder import TraceBuilder

FORWARD: dict[str, Any] = {"graph node id": 11, "name": "encoder"}
BACKWARD: dict[str, Any] = {"graph node id": 12, "name": "encoder", "autograd_phase": "backward"}
NESTED: dict[str, Any] = {
    "graph node id": 13,
    "annotation": json.dumps([{"name": "decoder"}, {"name": "decoder.norm", "dtype": "bf16"}]),
}


def replay(origin_us: float = 0) -> TraceBuilder:
    """Two steps, each one replay of a graph; the first is complete, and so is the second."""
    builder = TraceBuilder().gpu("NVIDIA H100")
    for step in range(2):
        at = origin_us + 1000 * step
        builder.step(step, at, 900).runtime("cudaGraphLaunch", at + 10, 20, 7 + step)
        for name, begin, duration, args in (
            ("gemm", 50, 100, FORWARD),
            ("gemm", 150, 300, BACKWARD),
            ("norm", 450, 40, NESTED),
            ("loss", 490, 60, {"graph node id": 14}),
            ("named otherwise", 550, 10, {"name": "no region"}),
        ):
            recorded = {"device": 0, "stream": 7, "correlation": 7 + step, **args}
            builder.event(ph="X", cat="kernel", name=name, pid=0, tid=7, ts=at + begin, dur=duration, args=recorded)
    return builder


def counter(builder: TraceBuilder, name: str, ts: float, value: Any, process: str = "GPU 0 Counters") -> None:
    builder.event(ph="C", name=name, pid=process, ts=ts, args={"": value})


def test_regions_are_summed_forward_and_backward() -> None:
    found = known(graph_regions(replay().build()))
    assert found.rows == (GraphRegion("encoder", 4, 800_000, 600_000), GraphRegion("decoder.norm", 2, 80_000, 0))
    assert (found.steps, found.device_ns, found.unattributed_device_ns) == (2, 1_020_000, 140_000)


def test_work_moved_to_a_display_lane_keeps_its_stream() -> None:
    trace = TraceBuilder().kernel("gemm", 0, 10, 1, stream=7, original_stream=23).build()
    assert trace.device.stream.tolist() == [23]


def recorded() -> TraceBuilder:
    builder = replay()
    for ts, watts in ((100, 300.0), (500, 500.0), (1500, 400.0), (5000, 9000.0)):
        counter(builder, "Power (W)", ts, watts)
    counter(builder, "SM Active (%)", 200, 80.5, "GPU 1 Counters")
    counter(builder, "Cycles (Current Kernel)", 200, 10**6)
    for odd in (None, "many", [1], {"a": 1}):
        counter(builder, "Power (W)", 300, odd)
    builder.event(ph="C", name="Power (W)", pid="another process", ts=400, args={"": 1.0})
    builder.event(ph="C", name="Power (W)", pid="GPU 0 Counters", ts=None, args={"": 1.0})
    builder.event(ph="C", name="Power (W)", pid="GPU 0 Counters", ts=400)
    return builder


def test_counters_of_the_averaged_steps_and_energy() -> None:
    found = known(hardware_counters(recorded().build()))
    assert found.rows == (
        CounterRow(0, "Power (W)", 3, 400.0, 300.0, 500.0),
        CounterRow(1, "SM Active (%)", 1, 80.5, 80.5, 80.5),
    )
    assert found.step_energy_j == pytest.approx(400.0 * 900e-6)


def test_they_are_read_from_a_damaged_file_and_joined(tmp_path: Path) -> None:
    text = json.dumps(recorded().document())
    sound, damaged = tmp_path / "sound.json", tmp_path / "damaged.json"
    sound.write_text(text)
    damaged.write_text(text.replace('"SM Active (%)"', '"SM Active (%)\\q"').replace("80.5", "nan", 1))
    assert graph_regions(read_trace(damaged)) == graph_regions(read_trace(sound))
    found = known(hardware_counters(read_trace(damaged)))
    assert [row.name for row in found.rows] == ["Power (W)"]
    later = replay(origin_us=10_000)
    counter(later, "Power (W)", 10_100, 600.0)
    joined = concatenate([read_trace(sound), later.build()])
    regions = known(graph_regions(joined))
    assert [(row.name, row.device_ns) for row in regions.rows] == [("encoder", 1_600_000), ("decoder.norm", 160_000)]
    counters = known(hardware_counters(joined))
    assert counters.rows[0] == CounterRow(0, "Power (W)", 4, 450.0, 300.0, 600.0)
