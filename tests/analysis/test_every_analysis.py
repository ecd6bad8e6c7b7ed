"""What holds for every analysis of a trace: odd recordings, the order of events, the origin of time, JSON."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from lightning_perf.analysis.communication import communication
from lightning_perf.analysis.idle import idle
from lightning_perf.analysis.kernels import kernels
from lightning_perf.analysis.launches import launches
from lightning_perf.analysis.memory import memory
from lightning_perf.analysis.modules import modules
from lightning_perf.analysis.operators import operators
from lightning_perf.trace.trace import Trace
from tests.support.trace_builder import TraceBuilder

ANALYSES: tuple[Callable[[Trace], Any], ...] = (
    operators,
    lambda trace: operators(trace, by_shape=True),
    kernels,
    modules,
    launches,
    idle,
    memory,
    communication,
)

NOTHING_SENT = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 0, "Group size": 0}

SMALLEST = {
    "an allocation": lambda: TraceBuilder().memory(5, 10, allocated=10, reserved=20),
    "a freed block": lambda: TraceBuilder().memory(5, -10),
    "a kernel of no length": lambda: TraceBuilder().kernel("k", 5, 0, 1),
    "a collective of no length": lambda: TraceBuilder().kernel("ncclAllReduce", 5, 0, 1, **NOTHING_SENT),
    "a module of no length": lambda: TraceBuilder().python("nn.Module: A_0", 5, 0),
    "an operator of no length": lambda: TraceBuilder().op("aten::mm", 5, 0),
    "a step of no length": lambda: TraceBuilder().step(1, 5, 0).kernel("k", 5, 0, 1).op("aten::mm", 5, 0),
    "a launch of nothing": lambda: TraceBuilder().runtime("cudaLaunchKernel", 0, 5, 1),
    "an empty step": lambda: TraceBuilder().step(1, 0, 10),
    "strange occupancy": lambda: TraceBuilder().kernel("k", 5, 3, 1, **{"est. achieved occupancy %": -5}),
    "work outside of the step": lambda: TraceBuilder().step(1, 0, 10).op("aten::mm", 2, 3).kernel("k", 50, 5, 1),
}


@pytest.mark.parametrize("analysis", range(len(ANALYSES)))
@pytest.mark.parametrize("name", SMALLEST)
def test_smallest_recordings(name, analysis):
    value = ANALYSES[analysis](SMALLEST[name]().build())
    if value is not None:
        assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value


def training(origin_us: int = 0) -> TraceBuilder:
    """Three steps with everything that the analyses look at."""
    builder = TraceBuilder().gpu("GPU", totalGlobalMem=10_000)
    for n in range(3):
        at = origin_us + 1000 * n
        builder.step(n, at, 1000)
        builder.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 100)
        builder.python("nn.Module: Net_0", at + 110, 300)
        builder.op("aten::linear", at + 120, 100, dims=[[8, n]], sequence=n)
        builder.op("aten::addmm", at + 130, 80, types=["float"], sequence=n)
        builder.memory(at + 135, 512, address=n + 1, allocated=1024 + 512 * n, reserved=4096)
        builder.launch("gemm", call_us=at + 140, call_duration_us=10, start_us=at + 160, duration_us=200)
        builder.launch(
            "ncclAllReduce", call_us=at + 155, call_duration_us=5, start_us=at + 300, duration_us=150, stream=9
        )
        builder.op("AddmmBackward0", at + 500, 100, sequence=n, forward_thread=1, thread=2000)
        builder.launch("gemm", call_us=at + 510, call_duration_us=10, start_us=at + 530, duration_us=90, thread=2000)
        builder.runtime("cudaStreamSynchronize", at + 600, 100)
    return builder


@pytest.mark.parametrize("analysis", ANALYSES)
def test_order_of_events_and_origin_of_time_do_not_matter(analysis):
    expected = analysis(training().build())
    assert expected is not None
    shuffled = training()
    random.Random(1).shuffle(shuffled.events)
    assert analysis(shuffled.build()) == expected
    assert analysis(training(origin_us=123_456_789).build()) == expected
