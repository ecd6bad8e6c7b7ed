"""Several ranks, on recordings with known times."""

import inspect
import re

import pytest
from msgspec.structs import replace

from lightning_perf.analysis.ranks.distributed import Distributed, LinkUse, RankTimes, distributed, rank_times
from lightning_perf.findings.ranks import SEND_LESS, data_parallel, exposed_communication, straggler_when_recorded
from lightning_perf.findings.whole_run import find
from tests.findings.recordings import Rule, analysis, finding_of, reducing, saving_of, training
from tests.support.trace_builder import TraceBuilder


def test_exposed_communication() -> None:
    finding = finding_of(exposed_communication, reducing(250))
    assert saving_of(finding) == pytest.approx((0.0625, 0.25))
    assert "DDPStrategy" in finding.action
    other = finding_of(exposed_communication, reducing(250, wrapper=False))
    assert "DDPStrategy" not in other.action


@pytest.mark.parametrize(
    ("share", "call_bytes", "at_least", "evidence", "advice"),
    [
        (0.9, 100e6, False, "only fewer bytes make them faster", "Send less often"),
        (0.9, 100e6, True, "at least 90.0 % of the peak of NVLink 4: only", "Send less often"),
        (0.2, 1e6, False, "977 KiB take 11.1 µs", "DDPStrategy(bucket_cap_mb=100)"),
        (0.2, 100e6, False, "95.4 MiB take 1.11 ms", "Compare with nccl-tests"),
        (0.005, 1e6, False, "977 KiB take 444 µs", "Compare with nccl-tests"),
        (0.2, 1e6, True, "at least 20.0 % of the peak of NVLink 4.", "Send less often"),  # it may be far more
        (0.5, 1e6, False, "50.0 % of the peak of NVLink 4.", "Send less often"),
        (None, 1e6, False, "", "Send less often"),
    ],
)
def test_the_use_of_the_link_decides_the_advice(share, call_bytes, at_least, evidence, advice) -> None:
    peak = None if share is None else 450e9
    use = LinkUse((share or 1) * 450e9, at_least, call_bytes, "NVLink 4" if share else None, peak, share)
    finding = finding_of(exposed_communication, replace(analysis(reducing(250)), link=use))
    assert (evidence in finding.evidence[-1]) if evidence else len(finding.evidence) == 1
    assert finding.action.startswith(advice)


def reducing_on_the_host(exposed_us: int, *, rank: int = 0) -> TraceBuilder:
    """Steps of a millisecond, of which Gloo's collective fills so much with no operator at work."""
    builder = TraceBuilder().rank(rank, 2, backend="gloo")
    for step in range(3):
        builder.step(step, 1000 * step, 1000).op("aten::mm", 1000 * step, 1000 - exposed_us)
        builder.annotation("gloo:all_reduce", 1000 * step + 500, 500, thread=3000)
    return builder


def test_exposed_communication_on_the_host() -> None:
    finding = finding_of(exposed_communication, reducing_on_the_host(400))
    assert "40.0 % of the step" in finding.title
    assert "accumulate_grad_batches" in finding.action
    assert saving_of(finding) == pytest.approx((0.075, 0.3))
    # The rank that waits least speaks here too.
    (of_two,) = find(map(analysis, (reducing_on_the_host(400), reducing_on_the_host(200, rank=1))))
    assert of_two.rank == 1


def test_no_more_is_hidden_than_there_is_compute() -> None:
    finding = finding_of(exposed_communication, reducing(900, compute_us=100))
    assert finding.saving_high_ms == pytest.approx(0.099, rel=0.02)


def compared(*builders: TraceBuilder) -> Distributed:
    times: list[RankTimes] = []
    for rank, builder in enumerate(builders):
        trace = builder.build()
        times.append(rank_times(trace, analysis(builder).breakdown, rank))
    result = distributed(times)
    assert result is not None
    return result


def test_a_rank_with_more_work_holds_up_the_others() -> None:
    uneven = compared(reducing(900, compute_us=600), reducing(100, rank=1, compute_us=1400))
    finding = finding_of(straggler_when_recorded, uneven)
    assert finding.rank == 1
    assert "sort the samples by length" in finding.action
    assert straggler_when_recorded(compared(reducing(100), reducing(100, rank=1))) is None
    # Works of 0.7 and 1.5 ms (waits of 0.8 ms taken off): evenly spread a step takes 1.1 ms.
    assert finding.saving_high_ms == pytest.approx(0.4, rel=0.05)
    assert finding.title.startswith("Straggler: rank 1 holds up the others with ")
    # Others may wait for another rank than the one with the most work.
    assert uneven.awaited is not None
    other = finding_of(straggler_when_recorded, replace(uneven, awaited=replace(uneven.awaited, rank=0, share=0.7)))
    assert other.title.startswith("Straggler: rank 1 has the most work, ")
    assert "But 70.0 % of the waits in collectives are for rank 0." in other.evidence
    assert other.saving_high_ms == finding.saving_high_ms


@pytest.mark.parametrize(
    ("rule", "recorded", "fires"),
    [
        (exposed_communication, reducing(51), False),
        (exposed_communication, reducing(54), True),
        (exposed_communication, reducing_on_the_host(40), False),
        (data_parallel, training(), False),
        (data_parallel, training().annotation("DataParallel.forward", 30, 100), True),
    ],
)
def test_a_rule_fires_from_its_threshold_on(rule: Rule, recorded: TraceBuilder, fires: bool) -> None:
    assert (rule(analysis(recorded)) is not None) == fires


def test_no_fsdp_setting_is_advised_that_is_a_default() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp").FullyShardedDataParallel
    defaults = inspect.signature(fsdp).parameters
    for name, value in re.findall(r"(\w+)=(True|False|\w+)", SEND_LESS["FullyShardedDataParallel"][0]):
        assert name not in defaults or str(defaults[name].default) != value
    assert "backward_prefetch" not in SEND_LESS["FullyShardedDataParallel"][0]
    assert "limit_all_gathers" not in SEND_LESS["FullyShardedDataParallel"][0]
