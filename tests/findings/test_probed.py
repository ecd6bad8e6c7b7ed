"""Findings whose savings were probed: the probe decides about range, loss and gain."""

import pytest
from msgspec.structs import replace

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.cpu import cpu_bf16, cpu_channels_last, cpu_overhead, cpu_threads
from lightning_perf.findings.kernels import half_precision
from lightning_perf.findings.savings import choose_graph_saving
from lightning_perf.report.verdict import saving_text
from lightning_perf.run_files.probe import Probe, ProbedChange
from tests.findings.host_recordings import convolving, on_processor
from tests.findings.recordings import FP32_GEMM, analysis, finding_of, saving_of, training

MS = 1e6


def probed(
    recorded: RankAnalysis,
    name: str,
    low_ms: float,
    high_ms: float,
    measured_ms: float = 9.0,
    similar_ms: float = 0.0,
) -> RankAnalysis:
    """A rank of which one change was probed, with 10 ms of operators."""
    middle = (low_ms + high_ms) / 2
    change = ProbedChange(
        name, "a setting", middle * MS, low_ms * MS, high_ms * MS, 0.0, measured_ms * MS, 5, similar_ms * MS
    )
    probe = Probe("A CPU", 0, (), 10 * MS, 10 * MS, measured_ms * MS, 5.0, (change,))
    return replace(recorded, probe=probe)


def convolution(**options: object) -> RankAnalysis:
    return analysis(convolving(on_processor(bf16=["avx512_bf16"]), **options))  # type: ignore[arg-type]


def test_a_range_without_a_probe_says_so() -> None:
    finding = finding_of(cpu_bf16, convolution())
    assert finding.basis == "general"
    assert saving_text(finding, None).endswith(", general range, not probed.")


RULES = {"bf16": cpu_bf16, "channels-last": cpu_channels_last}


def test_page_faults_that_the_probe_lacks_are_named() -> None:
    recorded = probed(convolution(), "bf16", 2.0, 2.6)
    assert recorded.probe is not None
    for faults_ms, named in ((0.0, False), (1.2, True)):
        changes = tuple(replace(change, faults_ns=faults_ms * MS) for change in recorded.probe.changes)
        finding = finding_of(cpu_bf16, replace(recorded, probe=replace(recorded.probe, changes=changes)))
        assert finding.model is not None
        assert ("page faults of 1.20 ms per step" in finding.model) == named


@pytest.mark.parametrize("name", RULES)
def test_a_probe_gives_the_range(name: str) -> None:
    finding = finding_of(RULES[name], probed(convolution(), name, 2.0, 2.6))
    assert (finding.basis, *saving_of(finding)) == ("probed", 2.0, 2.6)
    assert saving_text(finding, None) == (
        "Estimated saving: 2.00 ms to 2.60 ms per step (20.0 % to 26.0 %), probed on this device."
    )
    assert "run again with a setting" in finding.model


def test_a_probe_of_a_gpu_says_where_its_error_bands_come_from() -> None:
    on_gpu = finding_of(half_precision, probed(analysis(training(kernel=FP32_GEMM)), "bf16", 2.0, 2.6))
    on_cpu = finding_of(cpu_bf16, probed(convolution(), "bf16", 2.0, 2.6))
    assert on_gpu.basis == on_cpu.basis == "probed"
    assert "error bands from CPU networks" in on_gpu.model
    assert "error bands" not in on_cpu.model


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("low", "high"), [(-2.0, -1.0), (-1.5, 0.5), (0.1, 0.3)])
def test_a_loss_or_a_small_gain_is_no_finding(name: str, low: float, high: float) -> None:
    assert RULES[name](convolution()) is not None
    assert RULES[name](probed(convolution(), name, low, high)) is None


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("low", "high"), [(-0.5, 4.5), (0.01, 8.0), (-8.0, 9.0)])
def test_a_noisy_probe_limits_the_narrower_general_range(name: str, low: float, high: float) -> None:
    general_ms = saving_of(finding_of(RULES[name], convolution()))
    finding = finding_of(RULES[name], probed(convolution(), name, low, high))
    common = max(low, general_ms[0]), min(high, general_ms[1])
    assert saving_of(finding) == pytest.approx(common)
    limited = common != general_ms
    assert finding.basis == ("probed" if limited else "general")
    assert ("noisy" in finding.model) == limited
    assert cpu_overhead(probed(convolution(), "batch", low, high)) is None  # the rule sees nothing either


def test_a_noisy_probe_that_shows_less_than_the_general_range() -> None:
    without = finding_of(cpu_bf16, convolution())
    assert without.saving_low_ms is not None
    assert without.saving_low_ms > 1.5
    assert cpu_bf16(probed(convolution(), "bf16", -0.5, 1.5)) is None


def test_a_gain_that_may_be_nothing_is_no_finding() -> None:
    busy = analysis(convolving(on_processor(threads=1, load=7.5)))  # the rule itself sees nothing
    assert cpu_threads(probed(busy, "threads", 0.09, 1.0)) is None
    assert cpu_threads(probed(busy, "threads", 0.11, 1.0)) is not None


@pytest.mark.parametrize("name", ["batch", "compile"])
def test_a_change_with_a_cost_of_its_own_must_save_more(name: str) -> None:
    assert cpu_overhead(both(change(name, 0.29, 1.0))) is None
    assert cpu_overhead(both(change(name, 0.31, 1.0))) is not None


def test_a_gain_that_the_rule_missed() -> None:
    """Grouped convolutions mostly get slower with bfloat16, so the rule is silent."""
    recorded = convolution(groups=16)
    assert cpu_bf16(recorded) is None
    finding = cpu_bf16(probed(recorded, "bf16", 1.0, 1.4))
    # Products in FP32 are the evidence, and there are none here.
    assert finding is None
    overhead = finding_of(cpu_overhead, probed(convolution(), "batch", 1.0, 1.4))
    assert overhead.title == "Small batches: with a setting, each sample takes less time"
    assert cpu_overhead(convolution()) is None


@pytest.mark.parametrize(
    ("measured_ms", "similar_ms", "basis"),
    [(4.0, 0.0, "general"), (4.0, 2.9, "general"), (3.4, 5.0, "general"), (3.6, 3.5, "probed"), (7.1, 0.0, "probed")],
)
def test_a_probe_of_few_operators_is_not_enough(measured_ms: float, similar_ms: float, basis: str) -> None:
    finding = finding_of(cpu_bf16, probed(convolution(), "bf16", 2.0, 2.6, measured_ms, similar_ms))
    assert finding.basis == basis
    assert ("stands for" in finding.model) == (basis == "probed" and similar_ms > 0)


def test_a_probe_of_another_change_says_nothing() -> None:
    finding = finding_of(cpu_bf16, probed(convolution(), "channels-last", -2.0, -1.0))
    assert finding.basis == "general"


def test_threads() -> None:
    # The load average of the last minute may count a program that has ended.
    busy = analysis(convolving(on_processor(threads=1, load=7.5)))
    assert cpu_threads(busy) is None
    for recorded in (convolution(), busy):
        finding = finding_of(cpu_threads, probed(recorded, "threads", 4.0, 5.0))
        assert (finding.basis, finding.saving_low_ms) == ("probed", 4.0)
        assert cpu_threads(probed(recorded, "threads", -4.0, -3.0)) is None


def both(*changes: ProbedChange) -> RankAnalysis:
    """A rank with 10 ms of operators, compiled in 20 s, of which some changes were probed."""
    probe = Probe("A CPU", 0, (), 10 * MS, 10 * MS, 9 * MS, 5.0, changes, compile_s=20.0)
    return replace(convolution(), probe=probe)


def change(name: str, low_ms: float, high_ms: float) -> ProbedChange:
    return ProbedChange(name, f"{name}=X", (low_ms + high_ms) / 2 * MS, low_ms * MS, high_ms * MS, 0.0, 9 * MS, 5)


@pytest.mark.parametrize(("compiled", "fix"), [((2.0, 3.0), "torch.compile"), ((0.5, 1.0), "DataLoader(batch=X)")])
def test_the_fix_that_saves_more_is_given(compiled: tuple[float, float], fix: str) -> None:
    finding = finding_of(cpu_overhead, both(change("batch", 1.0, 2.0), change("compile", *compiled)))
    assert fix in finding.action
    assert saving_of(finding) == max((1.0, 2.0), compiled)
    assert ("Compiling took 20.0 s here." in finding.model) == (fix == "torch.compile")


def test_a_compiler_that_saves_nothing_is_not_advised() -> None:
    assert cpu_overhead(both(change("compile", -1.0, 0.1))) is None
    only = finding_of(cpu_overhead, both(change("compile", 1.0, 2.0)))
    assert only.basis == "probed"


def test_a_noisy_graph_does_not_say_what_a_step_keeps() -> None:
    """The general range is 1 to 4 ms."""
    noisy, sure = (
        choose_graph_saving(both(change("cuda-graph", *ends)), (1.0 * MS, 4.0 * MS), "A model.")
        for ends in ((-0.5, 3.0), (2.0, 3.0))
    )
    assert noisy is not None
    assert noisy.ns == (1.0 * MS, 3.0 * MS)
    assert noisy.model == "A model. A noisy probe on this device limits the range."
    assert sure is not None
    assert sure.ns == (2.0 * MS, 3.0 * MS)
    assert "A step then keeps at least" in sure.model
