"""Communication: overlap, sizes, also those that only an annotation records, and wrappers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_perf.analysis.ranks.communication import HostCollective, StepCommunication, communication, wrappers
from lightning_perf.analysis.steps.breakdown import breakdown
from lightning_perf.trace.reader import read_trace
from tests.support.known import known
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
    value = known(communication(trace))
    assert value.steps == (StepCommunication(1, 40_000, 50_000, 20_000, 30_000), StepCommunication(2, 10_000, 0, 0, 0))
    assert (value.compute_ns, value.communication_ns) == (50_000, 50_000)
    assert (value.overlapped_ns, value.exposed_ns) == (20_000, 30_000)
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
    value = known(communication(trace))
    floats, halves, broadcast = value.collectives
    assert (floats.name, floats.dtype, floats.group, floats.ranks, floats.bytes) == ("allreduce", "Float", "0", 4, 4000)
    assert (floats.calls, floats.total_ns, floats.mean_ns) == (2, 40_000, 20_000)
    assert (floats.min_ns, floats.max_ns) == (10_000, 30_000)
    assert floats.algorithm_bytes_per_s == pytest.approx(4000 / 20e-6)
    assert floats.bus_bytes_per_s == pytest.approx(4000 / 20e-6 * 1.5)
    assert floats.best_bus_bytes_per_s == pytest.approx(4000 / 10e-6 * 1.5)
    assert (halves.bytes, halves.calls) == (2000, 1)
    assert broadcast.name == "ncclBroadcast"
    assert (broadcast.bytes, broadcast.ranks, broadcast.bus_bytes_per_s) == (None, None, None)


def test_collectives_on_the_host():
    trace = TraceBuilder().annotation("gloo:all_reduce", 0, 5).annotation("gloo:all_reduce", 10, 7).build()
    value = known(communication(trace))
    assert value.host_collectives == (HostCollective("gloo:all_reduce", 2, 12_000),)
    assert (value.steps, value.collectives) == ((), ())


def test_collectives_on_the_host_are_exposed_while_it_does_nothing_else():
    builder = TraceBuilder().step(1, 0, 100).annotation("gloo:all_reduce", 10, 60, thread=3000)
    builder.annotation("gloo:broadcast", 65, 10, thread=3000).op("aten::mm", 0, 20).op("aten::mul", 30, 5, thread=2000)
    builder.annotation(FETCH, 50, 4)
    value = known(communication(builder.build()))
    # From 20 to 75, without the operator and the fetch in it.
    assert value.host_exposed_ns == (55 - 5 - 4) * 1000


@pytest.mark.corpus
def test_real_traces(trace, row):
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
    read = row["device_sets_ns"] or {}
    if not read.get("comm_ns"):
        return
    # The other reading knows collectives by "nccl" alone; here symmetric-memory kernels count too.
    if trace.device.is_collective.sum() == read["comm_kernels"]:
        assert (value.communication_ns, value.overlapped_ns) == (read["comm_ns"], read["overlap_comp_comm_ns"])
    else:
        assert value.communication_ns > read["comm_ns"]


def annotated(name: str, types: list[str], dims: list[list[int]]) -> TraceBuilder:
    builder = TraceBuilder().step(1, 0, 1000)
    inputs: dict[str, Any] = {"Input type": types, "Input Dims": dims}
    builder.host("user_annotation", name, 10, 50, **inputs).annotation("nccl:unrelated", 100, 20)
    return builder.launch("ncclKernel_X", call_us=20, call_duration_us=5, start_us=40, duration_us=200)


def test_the_annotation_of_a_collective_gives_its_size():
    found = known(communication(annotated("nccl:all_reduce", ["float"], [[394241]]).build()))
    (row,) = found.collectives
    assert (row.name, row.dtype, row.bytes, row.calls) == ("all_reduce", "float", 1_576_964, 1)
    assert row.algorithm_bytes_per_s == pytest.approx(1_576_964 / 200e-6)
    assert row.bus_bytes_per_s is None  # the annotation does not name the ranks


@pytest.mark.parametrize(("name", "types"), [("nccl:_all_gather_base", ["float"]), ("nccl:all_reduce", ["TensorList"])])
def test_a_size_that_the_annotation_does_not_show_is_unknown(name: str, types: list[str]):
    found = known(communication(annotated(name, types, [[8]]).build()))
    assert found.collectives[0].bytes is None


@pytest.mark.corpus
def test_sizes_of_a_recommendation_model(corpus: Path):
    folder = corpus / "traces" / "param" / "dlrm_kineto"
    if not folder.is_dir():
        pytest.skip("docs/corpus.md says where to get this recording")
    found = known(communication(read_trace(next(folder.glob("worker0_*")))))
    reduced = [row for row in found.collectives if row.name == "all_reduce"]
    assert sum(row.calls for row in reduced) == 3
    # The inputs in the file: 394,241, 112 and 226,960 floats.
    assert sum(row.calls * (row.bytes or 0) for row in reduced) == 2_485_252 == 4 * (394_241 + 112 + 226_960)


def test_wrappers_by_their_marks() -> None:
    assert wrappers(TraceBuilder().op("aten::mm", 0, 10).build()) == ()
    assert wrappers(TraceBuilder().annotation("DistributedDataParallel.forward", 0, 10).build()) == (
        "DistributedDataParallel",
    )
    # Old recordings have marks among the operators.
    assert wrappers(TraceBuilder().op("DataParallel.forward", 0, 10).build()) == ("DataParallel",)
