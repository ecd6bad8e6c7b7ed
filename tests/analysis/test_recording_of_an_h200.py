"""`PerfCallback`'s own recording of ResNet-50 on an H200, by ``benchmarks/gpu.sh first``, against independent counts.

Batches of 128 pictures of 224 × 224 in TF32 and channels last. The device bounds the steps, and the host runs ahead.
"""

from pathlib import Path

import pytest

from lightning_perf.analysis.rank import RankAnalysis, analyze_rank
from lightning_perf.analysis.steps.breakdown import breakdown
from lightning_perf.trace.reader import read_trace
from tests.support.known import known
from tests.support.naive_breakdown import naive_breakdown

PATH = Path(__file__).parents[1] / "traces" / "h200_resnet50_tf32.pt.trace.json.gz"
UNPROFILED_MS = 42.3
"""A step without the profiler, by CUDA events, in the same training."""


@pytest.fixture(scope="module")
def analysis() -> RankAnalysis:
    return analyze_rank(read_trace(PATH))


def test_steps_are_split_as_event_by_event() -> None:
    found = breakdown(read_trace(PATH))
    rows = [row for row in found.categories if row.per_step_ns is not None]
    expected = naive_breakdown(PATH)
    assert len(found.steps) == len(expected) == 3
    for index, (step, (start, end, times)) in enumerate(zip(found.steps, expected, strict=True)):
        assert step.wall_ns == end - start
        ours = {row.name: known(row.per_step_ns)[index] for row in rows}
        assert sum(ours[row.name] for row in rows if row.parent is None) == step.wall_ns
        assert {name: ours[name] for name in times} == times
        assert step.wall_ns / 1e6 == pytest.approx(UNPROFILED_MS, rel=0.02)


def test_operators_and_flops_are_those_of_the_model(analysis: RankAnalysis) -> None:
    torch = pytest.importorskip("torch")
    torchvision = pytest.importorskip("torchvision")
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = torchvision.models.resnet50(num_classes=25)
        model(torch.empty(128, 3, 224, 224)).sum().backward()
    operators = known(analysis.operators)
    calls = {row.name: row.calls / operators.steps for row in operators.rows}
    assert calls["aten::cudnn_convolution"] == calls["aten::convolution_backward"] == 53
    assert known(analysis.efficiency).flops == pytest.approx(3 * counter.get_total_flops(), rel=1e-3)


def test_convolutions_ran_in_tf32_on_tensor_cores(analysis: RankAnalysis) -> None:
    assert known(analysis.arithmetic).tensor_core_share == pytest.approx(0.40, abs=0.01)
