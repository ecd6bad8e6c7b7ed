from __future__ import annotations

import pytest

from lightning_perf.findings.ranks import exposed_communication
from lightning_perf.findings.registry import find
from tests.findings.recordings import analysis, reducing
from tests.support.trace_builder import TraceBuilder


def test_exposed_communication() -> None:
    finding = exposed_communication(analysis(reducing(250)))
    assert finding is not None
    assert finding.saving_high_ms == pytest.approx(0.25)
    assert finding.saving_low_ms == pytest.approx(0.0625)
    assert "DDPStrategy" in finding.action
    other = exposed_communication(analysis(reducing(250, wrapper=False)))
    assert other is not None
    assert "DDPStrategy" not in other.action


def reducing_on_the_host(exposed_us: int, *, rank: int = 0) -> TraceBuilder:
    """Steps of a millisecond, of which Gloo's collective fills so much with no operator at work."""
    builder = TraceBuilder().rank(rank, 2, backend="gloo")
    for step in range(3):
        builder.step(step, 1000 * step, 1000).op("aten::mm", 1000 * step, 1000 - exposed_us)
        builder.annotation("gloo:all_reduce", 1000 * step + 500, 500, thread=3000)
    return builder


def test_exposed_communication_on_the_host() -> None:
    finding = exposed_communication(analysis(reducing_on_the_host(400)))
    assert finding is not None
    assert "40.0 % of the step" in finding.title
    assert "accumulate_grad_batches" in finding.action
    assert (finding.saving_low_ms, finding.saving_high_ms) == (pytest.approx(0.075), pytest.approx(0.3))
    assert exposed_communication(analysis(reducing_on_the_host(40))) is None
    # The rank that waits least speaks here too.
    (of_two,) = find(map(analysis, (reducing_on_the_host(400), reducing_on_the_host(200, rank=1))))
    assert of_two.rank == 1


@pytest.mark.parametrize(("exposed_us", "fires"), [(51, False), (54, True)])
def test_threshold_of_5_percent(exposed_us: int, fires: bool) -> None:
    assert (exposed_communication(analysis(reducing(exposed_us))) is not None) == fires


def test_no_more_is_hidden_than_there_is_compute() -> None:
    finding = exposed_communication(analysis(reducing(900, compute_us=100)))
    assert finding is not None
    assert finding.saving_high_ms == pytest.approx(0.099, rel=0.02)
