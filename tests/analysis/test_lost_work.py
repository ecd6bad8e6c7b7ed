"""Launches whose kernels a recording lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.analysis.trust import Trust, trust
from lightning_perf.report.sentences import trust_line
from lightning_perf.trace.reader import read_trace
from tests.conftest import corpus_rows
from tests.support.trace_builder import TraceBuilder


def recording(lost: int = 0) -> TraceBuilder:
    """One step of ten launches; the kernels of the first ones are missing."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB").step(1, 0, 1000)
    for number in range(10):
        at = 20 + 20 * number
        builder.op("aten::mm", at, 15, types=["float", "float"], dims=[[8, 8], [8, 8]])
        if number < lost:
            builder.runtime("cudaLaunchKernel", at + 2, 5, correlation=9000 + number)
        else:
            builder.launch("gemm", call_us=at + 2, call_duration_us=5, start_us=at + 20, duration_us=15)
    return builder


def trusted(builder: TraceBuilder) -> Trust:
    found = trust([analyze_rank(builder.build())])
    assert found is not None
    return found


def test_launches_without_a_kernel_are_counted() -> None:
    found = trusted(recording(lost=3))
    assert (found.kernels, found.unlinked_kernels, found.empty_launches) == (7, 0, 3)
    assert not found.sound
    assert "3 launches without recorded work: device times are too low" in trust_line(found)


def test_a_single_one_is_a_launch() -> None:
    assert "1 launch without recorded work" in trust_line(trusted(recording(lost=1)))


def test_a_whole_recording_has_none() -> None:
    found = trusted(recording())
    assert (found.empty_launches, found.sound) == (0, True)
    assert "without recorded work" not in trust_line(found)


def test_two_calls_of_one_launch_are_one() -> None:
    """A runtime call and the driver's call below it share a correlation."""
    builder = recording()
    builder.runtime("cudaLaunchKernel", 500, 8, correlation=77).runtime("cuLaunchKernel", 502, 4, correlation=77)
    builder.kernel("gemm", 520, 15, 77)
    assert trusted(builder).empty_launches == 0


def test_capturing_a_graph_starts_no_work() -> None:
    builder = recording()
    builder.runtime("cudaStreamBeginCapture", 300, 2)
    for number in range(5):
        builder.runtime("cudaLaunchKernel", 310 + 10 * number, 5, correlation=8000 + number)
    builder.runtime("cudaStreamEndCapture", 390, 2)
    assert trusted(builder).empty_launches == 0
    builder.runtime("cudaLaunchKernel", 400, 5, correlation=8100)
    assert trusted(builder).empty_launches == 1


def test_a_capture_that_began_before_the_recording() -> None:
    builder = recording()
    builder.runtime("cudaLaunchKernel", 2, 5, correlation=8000).runtime("cudaStreamEndCapture", 12, 2)
    assert trusted(builder).empty_launches == 0


def test_another_thread_captures() -> None:
    builder = recording(lost=1)
    builder.runtime("cudaStreamBeginCapture", 5, 2, thread=99).runtime("cudaStreamEndCapture", 900, 2, thread=99)
    assert trusted(builder).empty_launches == 1


@pytest.mark.corpus
@pytest.mark.parametrize("row", corpus_rows(), ids=lambda row: row["file"].split("/", 1)[1])
def test_published_recordings_lost_nothing(row: dict[str, str], corpus: Path) -> None:
    found = analyze_rank(read_trace(corpus / "traces" / row["file"])).launches
    assert found is None or found.empty_calls == 0
