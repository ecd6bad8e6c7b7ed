from __future__ import annotations

import msgspec
import pytest

from lightning_perf.analysis.ranks.communication import Communication, HostCollective, StepCommunication, communication
from lightning_perf.analysis.steps.breakdown import breakdown
from tests.conftest import corpus_rows
from tests.support.trace_builder import FETCH, TraceBuilder

ALL_REDUCE = {
    "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1000, "Out msg nelems": 1000, "Group size": 4,
    "Process Group Name": "0",
}  # fmt: skip


def test_hidden_and_exposed_communication():
    trace = (
        TraceBuilder()
        .step(1, 0, 100)
        .step(2, 100, 100)
        .launch("gemm", call_us=5, call_duration_us=2, start_us=10, duration_us=40)
        .launch("ncclAllReduce", call_us=8, call_duration_us=2, start_us=30, duration_us=50, stream=9)
        .launch("gemm", call_us=105, call_duration_us=2, start_us=110, duration_us=10)
        .build()
    )
    value = communication(trace)
    assert value is not None
    assert value.steps == (
        StepCommunication(1, 40_000, 50_000, 20_000, 30_000),
        StepCommunication(2, 10_000, 0, 0, 0),
    )
    assert (value.compute_ns, value.communication_ns, value.overlapped_ns, value.exposed_ns) == (
        50_000,
        50_000,
        20_000,
        30_000,
    )
    assert value.exposed_share == pytest.approx(0.15)


def test_bandwidth_by_size():
    trace = (
        TraceBuilder()
        .kernel("ncclAllReduce", 0, 10, 1, **ALL_REDUCE)
        .kernel("ncclAllReduce", 20, 30, 2, **ALL_REDUCE)
        .kernel("ncclAllReduce", 60, 8, 3, **{**ALL_REDUCE, "dtype": "Half"})
        .kernel("ncclBroadcast", 80, 5, 4)
        .build()
    )
    value = communication(trace)
    assert value is not None
    floats, halves, broadcast = value.collectives
    assert (floats.name, floats.dtype, floats.group, floats.ranks, floats.bytes) == ("allreduce", "Float", "0", 4, 4000)
    assert (floats.calls, floats.total_ns, floats.mean_ns, floats.min_ns, floats.max_ns) == (
        2,
        40_000,
        20_000,
        10_000,
        30_000,
    )
    assert floats.algorithm_bytes_per_s == pytest.approx(4000 / 20e-6)
    assert floats.bus_bytes_per_s == pytest.approx(4000 / 20e-6 * 1.5)
    assert floats.best_bus_bytes_per_s == pytest.approx(4000 / 10e-6 * 1.5)
    assert (halves.bytes, halves.calls) == (2000, 1)
    assert (broadcast.name, broadcast.bytes, broadcast.ranks, broadcast.bus_bytes_per_s) == (
        "ncclBroadcast",
        None,
        None,
        None,
    )


def test_collectives_on_the_host():
    trace = TraceBuilder().annotation("gloo:all_reduce", 0, 5).annotation("gloo:all_reduce", 10, 7).build()
    value = communication(trace)
    assert value is not None
    assert value.host_collectives == (HostCollective("gloo:all_reduce", 2, 12_000),)
    assert (value.steps, value.collectives) == ((), ())


def test_collectives_on_the_host_are_exposed_while_it_does_nothing_else():
    builder = TraceBuilder().step(1, 0, 100).annotation("gloo:all_reduce", 10, 60, thread=3000)
    builder.annotation("gloo:broadcast", 65, 10, thread=3000).op("aten::mm", 0, 20).op("aten::mul", 30, 5, thread=2000)
    builder.annotation(FETCH, 50, 4)
    value = communication(builder.build())
    assert value is not None
    # From 20 to 75, without the operator and the fetch in it.
    assert value.host_exposed_ns == (55 - 5 - 4) * 1000


def test_no_collectives_give_nothing():
    assert communication(TraceBuilder().kernel("gemm", 0, 5, 1).build()) is None


@pytest.mark.corpus
def test_real_traces(trace):
    value = communication(trace)
    if value is None:
        assert not trace.device.is_collective.any()
        return
    if value.steps:
        per_step = breakdown(trace).category("communication").per_step_ns
        assert value.exposed_ns <= sum(per_step)
        assert {step.exposed_ns for step in value.steps} <= set(per_step)
        assert all(step.overlapped_ns + step.exposed_ns == step.communication_ns for step in value.steps)
    assert sum(call.calls for call in value.collectives) <= trace.device.is_collective.sum()
    assert msgspec.json.decode(msgspec.json.encode(value), type=Communication) == value


@pytest.mark.corpus
@pytest.mark.parametrize(
    "row", [row for row in corpus_rows() if (row["device_sets_ns"] or {}).get("comm_ns")], ids=lambda row: row["file"]
)
def test_against_the_independent_reading(trace, row):
    value = communication(trace)
    assert value is not None
    told = row["device_sets_ns"]
    # The other reading knows collectives by "nccl" alone; here symmetric-memory kernels count too.
    if trace.device.is_collective.sum() == told["comm_kernels"]:
        assert (value.communication_ns, value.overlapped_ns) == (told["comm_ns"], told["overlap_comp_comm_ns"])
    else:
        assert value.communication_ns > told["comm_ns"]
