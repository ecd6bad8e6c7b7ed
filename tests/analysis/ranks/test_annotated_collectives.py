"""Sizes of collectives that only the annotation around their call records, as in torch before 2.4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_perf.analysis.ranks.communication import communication
from lightning_perf.trace.reader import read_trace
from tests.support.trace_builder import TraceBuilder


def annotated(name: str, types: list[str], dims: list[list[int]]) -> TraceBuilder:
    builder = TraceBuilder().step(1, 0, 1000)
    inputs: dict[str, Any] = {"Input type": types, "Input Dims": dims}
    builder.host("user_annotation", name, 10, 50, **inputs).annotation("nccl:unrelated", 100, 20)
    return builder.launch("ncclKernel_X", call_us=20, call_duration_us=5, start_us=40, duration_us=200)


def test_the_annotation_of_a_collective_gives_its_size():
    found = communication(annotated("nccl:all_reduce", ["float"], [[394241]]).build())
    assert found is not None
    (row,) = found.collectives
    assert (row.name, row.dtype, row.bytes, row.calls) == ("all_reduce", "float", 1_576_964, 1)
    assert row.algorithm_bytes_per_s == pytest.approx(1_576_964 / 200e-6)
    assert row.bus_bytes_per_s is None  # the annotation does not name the ranks


@pytest.mark.parametrize(("name", "types"), [("nccl:_all_gather_base", ["float"]), ("nccl:all_reduce", ["TensorList"])])
def test_a_size_that_the_annotation_does_not_show_is_unknown(name: str, types: list[str]):
    found = communication(annotated(name, types, [[8]]).build())
    assert found is not None
    assert found.collectives[0].bytes is None


@pytest.mark.corpus
def test_sizes_of_a_recommendation_model(corpus: Path):
    folder = corpus / "traces" / "param" / "dlrm_kineto"
    if not folder.is_dir():
        pytest.skip("docs/corpus.md says where to get this recording")
    found = communication(read_trace(next(folder.glob("worker0_*"))))
    assert found is not None
    reduced = [row for row in found.collectives if row.name == "all_reduce"]
    assert sum(row.calls for row in reduced) == 3
    # The inputs in the file: 394,241, 112 and 226,960 floats.
    assert sum(row.calls * (row.bytes or 0) for row in reduced) == 2_485_252 == 4 * (394_241 + 112 + 226_960)
