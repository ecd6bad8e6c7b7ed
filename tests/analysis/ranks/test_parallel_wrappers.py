from __future__ import annotations

from lightning_perf.analysis.ranks.communication import wrappers
from tests.support.trace_builder import TraceBuilder


def test_wrappers_by_their_marks() -> None:
    assert wrappers(TraceBuilder().op("aten::mm", 0, 10).build()) == ()
    assert wrappers(TraceBuilder().annotation("DistributedDataParallel.forward", 0, 10).build()) == (
        "DistributedDataParallel",
    )
    # Old recordings have marks among the operators.
    assert wrappers(TraceBuilder().op("DataParallel.forward", 0, 10).build()) == ("DataParallel",)
