from __future__ import annotations

from dataclasses import fields

from lightning_perf.analysis.rank import analyze_rank
from tests.support.trace_builder import TraceBuilder

OF_THE_DEVICE = {"arithmetic", "efficiency", "launches", "idle", "sync_points", "kernels", "communication", "memory"}


def test_a_recording_of_the_host_has_no_section_of_the_device() -> None:
    analysis = analyze_rank(TraceBuilder().step(1, 0, 100).op("aten::mm", 0, 90).build())
    assert {field.name for field in fields(analysis) if getattr(analysis, field.name) is None} >= OF_THE_DEVICE
    assert analysis.operators is not None
    assert analysis.recording_ns == 100_000


def test_operators_by_shape_on_request() -> None:
    builder = TraceBuilder().step(1, 0, 100)
    builder.op("aten::mm", 0, 10, types=["float"], dims=[[2, 2]]).op("aten::mm", 20, 10, types=["float"], dims=[[4, 4]])
    together, apart = (analyze_rank(builder.build(), by_shape=by_shape).operators for by_shape in (False, True))
    assert together is not None
    assert apart is not None
    assert [row.calls for row in together.rows] == [2]
    assert {row.input_shapes for row in apart.rows} == {"[[2,2]]", "[[4,4]]"}
