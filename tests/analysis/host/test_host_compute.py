from typing import Any

import pytest

from lightning_perf.analysis.host.host_compute import HostWork, Layout, host_compute
from lightning_perf.analysis.model.operators import operators
from tests.findings.host_recordings import ACTIVATIONS, WEIGHTS, convolving, on_processor
from tests.support.known import known
from tests.support.trace_builder import TraceBuilder


def test_every_kind_with_its_time() -> None:
    trace = convolving(on_processor()).build()
    found = known(host_compute(trace))
    first: Layout = "channels first"
    assert found.work == (
        HostWork("convolution backward", "fp32", first, 3, 15_000_000, 3 * WEIGHTS, 3 * ACTIVATIONS),
        HostWork("convolution", "fp32", first, 3, 9_000_000, 3 * WEIGHTS, 0),
        HostWork("pooling", "fp32", first, 3, 3_000_000, 0, 0),
        HostWork("normalization backward", "fp32", first, 3, 1_500_000, 0, 0),
        HostWork("normalization", "fp32", first, 3, 1_200_000, 0, 0),
        HostWork("other", "fp32", None, 3, 150_000, 0, 0),
        HostWork("other", "unknown", None, 3, 150_000, 0, 0),  # aten::conv2d around the convolution
    )
    assert (found.steps, found.calls, found.short_calls, found.gaps_ns) == (3, 21, 0, 0)
    assert found.operator_ns == sum(row.time_ns for row in found.work)
    assert found.operator_ns == sum(row.host_self_ns for row in operators(trace).rows)


@pytest.mark.parametrize(
    ("data", "data_strides", "weight", "weight_strides", "layout"),
    [
        ([2, 4, 8, 8], [256, 64, 8, 1], [8, 4, 3, 3], [36, 9, 3, 1], "channels first"),
        ([2, 4, 8, 8], [256, 1, 32, 4], [8, 4, 3, 3], [36, 9, 3, 1], "channels last"),
        ([2, 4, 8, 8], [256, 64, 8, 1], [8, 4, 3, 3], [36, 1, 12, 4], "channels last"),
        ([2, 1, 8, 8], [64, 64, 8, 1], [8, 1, 3, 3], [9, 9, 3, 1], None),  # of one channel both orders are the same
        ([2, 4, 8, 8], [256, 64, 8, 1], [8, 4, 1, 1], [4, 1, 1, 1], "channels first"),  # so they are of one pixel
        ([2, 4, 8], [32, 8, 1], [8, 4, 3], [12, 3, 1], None),  # one dimension
    ],
)
def test_layout(
    data: list[int], data_strides: list[int], weight: list[int], weight_strides: list[int], layout: str
) -> None:
    builder = TraceBuilder().step(1, 0, 100)
    strides: dict[str, Any] = {"Input Strides": [data_strides, weight_strides]}
    builder.op("aten::mkldnn_convolution", 0, 90, types=["float", "float"], dims=[data, weight], **strides)
    found = known(host_compute(builder.build()))
    assert [(row.kind, row.layout) for row in found.work] == [("convolution", layout)]


def test_grouped_convolutions_are_a_kind_of_their_own() -> None:
    found = known(host_compute(convolving(on_processor(), groups=16).build()))
    grouped = [row for row in found.work if row.kind == "grouped convolution"]
    assert sum(row.time_ns for row in grouped) == 3 * 8_000_000


def test_short_operators_and_gaps() -> None:
    builder = TraceBuilder().step(1, 0, 5000)
    builder.op("aten::linear", 0, 200).op("aten::t", 10, 9).op("aten::addmm", 30, 165)  # linear has 26 µs of its own
    builder.op("aten::add", 500, 5).op("aten::mm", 2600, 2000)
    found = known(host_compute(builder.build()))
    assert (found.calls, found.short_calls, found.short_ns) == (5, 2, 14_000)
    assert found.gaps_ns == (300 + 400) * 1000  # the gap of 2.1 ms is no calling


def test_nothing_of_trainings_on_a_device_or_without_operators() -> None:
    launched = convolving(on_processor()).launch("k", call_us=1, call_duration_us=1, start_us=3, duration_us=5)
    assert host_compute(launched.build()) is None
    assert host_compute(convolving(on_processor(trains=False)).build()) is None
    assert host_compute(convolving(TraceBuilder().gpu("NVIDIA A100")).build()) is None
    assert host_compute(TraceBuilder().step(1, 0, 100).build()) is None
    assert host_compute(convolving(on_processor().gpu("NVIDIA A100")).build()) is not None  # it is not used


def test_sizes_of_damaged_shapes_stay_within_64_bits() -> None:
    builder = TraceBuilder().step(1, 0, 100)
    huge = [2**60, 2**60, 2**60, 2**60]
    builder.op("aten::convolution_backward", 0, 90, types=["float"] * 3, dims=[huge] * 3)
    found = known(host_compute(builder.build()))
    assert 0 < found.work[0].weights < 2**63
    assert 0 < found.work[0].activations < 2**63


def test_damaged_inputs_are_of_no_kind_or_layout() -> None:
    builder = TraceBuilder().step(1, 0, 400)
    damaged: list[tuple[Any, Any]] = [
        ("nonsense", None),
        ([[2, 3], "x"], [[3]]),
        ([[-1, 4, 8, 8], [8]], [[1, 2, 3, 4], 5]),
        ([[2, 4, 8, 8]], [[]]),
    ]
    for number, (dims, strides) in enumerate(damaged):
        given: dict[str, Any] = {"dims": dims, "Input Strides": strides}
        builder.op("aten::mkldnn_convolution", 100 * number, 90, types=["float"], **given)
    found = known(host_compute(builder.build()))
    assert {(row.kind, row.layout) for row in found.work} == {("convolution", None)}
