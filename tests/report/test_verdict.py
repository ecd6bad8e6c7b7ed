from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.steps.fit_time import FitGroup
from lightning_perf.analysis.steps.step_times import summarize_step_times
from lightning_perf.findings.finding import Finding, Problem, SavingRange, Severity, make_finding
from lightning_perf.findings.whole_run import HeldBack, find
from lightning_perf.report.verdict import judge, rests_on_first, saving_text
from lightning_perf.run_files.steps import StepSample
from tests.findings.accounts import fit_time
from tests.findings.recordings import analysis, training
from tests.support.trace_builder import TraceBuilder


def test_where_why_and_next() -> None:
    lead = analysis(training(fetch_us=2500, loader="_SingleProcessDataLoaderIter"))
    verdict = judge(lead, find([lead]), None)
    assert verdict.where == (
        "A step takes 12.5 ms (mean of 4): 79.8 % is device compute, 20.0 % waits for the next batch."
    )
    assert verdict.why == (
        "Input-bound: 20.0 % of the step waits for data. In the mean step, the training thread waits 2.50 ms "
        "of 12.5 ms for its batch."
    )
    assert "num_workers=4" in verdict.next
    assert verdict.next.endswith("Estimated saving: up to 2.50 ms per step (20.0 %).")


CUT_OFF = analysis(training())
CUT_OFF = replace(CUT_OFF, breakdown=replace(CUT_OFF.breakdown, averages_cut_steps=True))


@pytest.mark.parametrize(
    ("lead", "where"),
    [
        (None, "Nothing was recorded."),
        (analysis(training().rank(3, 8)), "A step takes 10.0 ms on rank 3"),
        (CUT_OFF, "The recorded part of a step takes"),
        (analysis(TraceBuilder().step(1, 0, 100).op("aten::mm", 0, 90)), "A step takes 100 µs (one recorded): 90.0 %"),
        (
            analysis(TraceBuilder().step(1, 0, 100).runtime("cudaMalloc", 0, 80).kernel("k", 90, 10)),
            "A step takes 100 µs (one recorded): 80.0 % asks the driver for memory",
        ),
    ],
)
def test_where_the_time_goes(lead: RankAnalysis | None, where: str) -> None:
    assert judge(lead, (), None).where.startswith(where)


def test_without_findings_the_largest_operator_is_named_if_it_has_time_on_the_device() -> None:
    verdict = judge(analysis(training()), (), None)
    assert verdict.why == "No rule found time that a known change would save."
    assert verdict.next.endswith("aten::mm takes most, 9.98 ms per step.")
    replayed = analysis(TraceBuilder().step(1, 0, 100).op("aten::mm", 0, 5).kernel("replayed", 0, 95))
    assert "takes most" not in judge(replayed, (), None).next


@pytest.mark.parametrize(
    ("saved_s", "share_of_steps", "severity", "leads"),
    [
        # The steps' first finding saves 10 % of a step on average. The finding of the fit saves 8 s of 100 s.
        (8, 1.0, "high", False),
        (8, 0.7, "high", True),  # 7 % of the fit
        (8, 0.7, "low", False),
        (30, 1.0, "high", True),
    ],
)
def test_a_finding_of_the_fit_leads_if_it_saves_more_of_it(
    saved_s: float, share_of_steps: float, severity: Severity, leads: bool
) -> None:
    lead = analysis(training(fetch_us=2500, loader="_SingleProcessDataLoaderIter"))
    found = find([lead])
    verdict = judge(
        lead,
        found,
        None,
        fit_findings=[of_fit(saved_s, severity)],
        fit=replace(fit_time(), groups=(FitGroup("training steps", 0, share_of_steps, ()),)),
    )
    assert verdict.why.startswith("Over the fit: Long validation" if leads else "Input-bound")
    assert verdict.next.startswith("Validate less often.") == leads
    assert rests_on_first(verdict, found) != leads


def test_a_slow_first_step_leads_only_where_the_steps_have_no_finding() -> None:
    lead = analysis(training(fetch_us=2500, loader="_SingleProcessDataLoaderIter"))
    first_step, other = of_fit(50, "high", "slow-first-step"), of_fit(40, "high")

    def why(findings: Sequence[Finding], *of_the_fit: Finding) -> str:
        return judge(lead, findings, None, fit_findings=of_the_fit, fit=fit_time()).why

    assert why(find([lead]), first_step).startswith("Input-bound")
    assert why(find([lead]), first_step, other) == "Over the fit: Long validation."
    assert why((), first_step).endswith("Over the fit: Slow first step.")


def of_fit(saved_s: float, severity: Severity, kind: str = "long-validation") -> Finding:
    saving = SavingRange((saved_s * 1e9, saved_s * 1e9), "")
    problem = Problem(kind.replace("-", " ").capitalize(), "", "Validate less often.", saving, severity)
    return make_finding(kind, problem, whole_ns=100e9, rank=0, per="fit")


def test_findings_that_are_held_back_come_after_those_of_the_fit() -> None:
    lead = analysis(training(fetch_us=2500, loader="_SingleProcessDataLoaderIter"))
    held = [HeldBack(finding, "Estimated while the machine was busy.") for finding in find([lead])]
    verdict = judge(lead, (), None, held_back=held, fit_findings=[of_fit(5, "moderate")])
    assert verdict.why == "1 finding of the recorded steps is held back. Over the fit: Long validation."
    assert verdict.next.startswith("Validate less often.")
    assert judge(lead, (), None, held_back=held).next == held[0].reason


def test_a_cause_of_little_is_not_passed_off_as_the_reason() -> None:
    lead = analysis(training(fetch_us=2500))
    (found,) = find([lead])
    assert judge(lead, [found], None).why.startswith("Input-bound")
    why = judge(lead, [replace(found, severity="low")], None).why
    assert why.startswith("A known change would save little. The most: Input-bound")


def test_step_times_alone() -> None:
    times = summarize_step_times([StepSample(step, 10**8, 10**7, None, None, False) for step in range(20)])
    verdict = judge(None, (), times)
    assert verdict.where == "A step takes 100 ms (median of 15), 10.0 % of it waiting for the next batch."
    assert "skip_first" in verdict.next


def test_the_median_without_the_profiler_comes_first_if_it_is_of_the_rank() -> None:
    lead = analysis(training().rank(3, 8))
    times = summarize_step_times([StepSample(step, 8_000_000 + step, 10**6, None, None, False) for step in range(20)])
    where = judge(lead, (), replace(times, rank=3)).where
    assert where.startswith("A step takes 8.00 ms on rank 3 (median of 15 without the profiler). The recorded steps ")
    assert "take 10.0 ms (mean of 4): " in where
    for other in (replace(times, rank=0), replace(times, rank=3, only_profiled=True)):
        assert judge(lead, (), other).where.startswith("A step takes 10.0 ms on rank 3 (mean of 4): ")


def test_a_saving_says_what_it_is_of() -> None:
    lead = analysis(training(fetch_us=2500))  # steps of 12.5 ms
    (finding,) = find([lead])
    assert finding.step_ms == 12.5
    equal = replace(finding, saving_low_ms=2.5, saving_high_ms=2.5)
    assert saving_text(equal, None) == "Estimated saving: 2.50 ms per step."
    assert saving_text(replace(finding, saving_low_ms=None), None) == ""
    saving = replace(finding, saving_low_ms=0.0, saving_high_ms=2.5)
    assert saving_text(saving, lead) == "Estimated saving: up to 2.50 ms per step (20.0 %)."
    unmarked = replace(lead, breakdown=replace(lead.breakdown, marked=False))
    assert saving_text(saving, unmarked) == "Estimated saving: up to 2.50 ms in the recording (20.0 %)."


def test_what_is_found_on_another_rank_is_measured_by_the_step_of_that_rank() -> None:
    lead, other = analysis(training().rank(3, 8)), analysis(training(fetch_us=2500).rank(5, 8))  # steps of 10, 12.5 ms
    (finding,) = find([lead, other])
    assert (finding.rank, finding.step_ms) == (5, 12.5)
    verdict = judge(lead, [finding], None)
    assert verdict.why.startswith("On rank 5: Input-bound: 20.0 % of the step")
    assert verdict.next.endswith("Estimated saving: 1.25 ms to 2.50 ms per step (10.0 % to 20.0 % of rank 5's).")
    assert "rank 5" not in judge(other, [finding], None).next
