import pytest

from lightning_perf.compare.verdicts.gates import Gate, GateOutcome, judge, parse_gate
from lightning_perf.errors import CompareError
from lightning_perf.statistics.collapse import CollapseCounts
from lightning_perf.statistics.values import Estimate


def estimate(value, low, high, reason=None):
    return Estimate(value, low, high, 0.95, 6, "paired t", reason)


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ("step_time<=1.05", ("step_time", True, 1.05)),
        ("accuracy>=-0.01", ("accuracy", False, -0.01)),
        ("  throughput >= .95 ", ("throughput", False, 0.95)),
        ("host_memory<=1e2", ("host_memory", True, 100.0)),
        ("accuracy<=+0.5", ("accuracy", True, 0.5)),
    ],
)
def test_gates_are_read(text, gate):
    assert parse_gate(text) == Gate(text, *gate)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a gate"),
        ("step_time", "not a gate"),
        ("step_time<1.05", "not a gate"),
        ("step_time==1", "not a gate"),
        ("step_time<=", "not a gate"),
        ("step_time<=1.2.3", "not a gate"),
        ("step_time<=.", "not a gate"),
        ("step_time<=nan", "not a gate"),
        ("step_time<=5 %", "not a gate"),
        ("step time<=1", "not a gate"),
        ("speed<=1", r"unknown metric \"speed\"\. Choose from: step_time, "),
        ("step_time<=0", "which must be positive"),
        ("step_time>=-0.05", "which must be positive"),
    ],
)
def test_what_is_no_gate_is_an_error_that_quotes_it(text, message):
    with pytest.raises(CompareError, match=message) as error:
        parse_gate(text)
    assert f'"{text}"' in str(error.value)


@pytest.mark.parametrize(
    ("gate", "ends", "outcome"),
    [
        ("step_time<=1.05", (0.90, 1.00), GateOutcome.PASSED),
        ("step_time<=1.05", (0.90, 1.05), GateOutcome.PASSED),
        ("step_time<=1.05", (1.00, 1.10), GateOutcome.INCONCLUSIVE),
        ("step_time<=1.05", (1.05, 1.10), GateOutcome.INCONCLUSIVE),
        ("step_time<=1.05", (1.06, 1.10), GateOutcome.FAILED),
        ("accuracy>=-0.01", (-0.005, 0.01), GateOutcome.PASSED),
        ("accuracy>=-0.01", (-0.01, 0.01), GateOutcome.PASSED),
        ("accuracy>=-0.01", (-0.02, 0.01), GateOutcome.INCONCLUSIVE),
        ("accuracy>=-0.01", (-0.03, -0.02), GateOutcome.FAILED),
    ],
)
def test_a_gate_is_judged_by_the_whole_interval(gate, ends, outcome):
    result = judge(parse_gate(gate), "amp", estimate(sum(ends) / 2, *ends))
    assert result.outcome is outcome
    assert (result.low, result.high) == ends
    assert (result.gate, result.arm) == (gate, "amp")


def test_without_a_value_or_an_interval_a_gate_is_inconclusive_and_says_why():
    gate = parse_gate("step_time<=1.05")
    assert judge(gate, "amp", None).reason == "the runs have no step_time"
    assert judge(gate, "amp", estimate(None, None, None, "because")).reason == "because"
    single = judge(gate, "amp", estimate(0.5, None, None, "a single run"))
    assert (single.outcome, single.value, single.reason) == (GateOutcome.INCONCLUSIVE, 0.5, "a single run")


@pytest.mark.parametrize(("value", "outcome"), [(1.0, GateOutcome.PASSED), (1.2, GateOutcome.FAILED)])
def test_a_number_that_is_the_same_in_every_run_is_judged_by_itself(value, outcome):
    result = judge(parse_gate("host_memory<=1.1"), "amp", estimate(value, None, None, "none"), deterministic=True)
    assert (result.outcome, result.low, result.high) == (outcome, value, value)


@pytest.mark.parametrize(
    ("counts", "outcome"),
    [
        (CollapseCounts(0, 6, 0, 6), GateOutcome.PASSED),
        (CollapseCounts(2, 6, 2, 6), GateOutcome.PASSED),
        (CollapseCounts(0, 6, 1, 6), GateOutcome.INCONCLUSIVE),
        (CollapseCounts(0, 6, 4, 6), GateOutcome.INCONCLUSIVE),
        (CollapseCounts(0, 6, 5, 6), GateOutcome.FAILED),
    ],
)
def test_a_least_accuracy_does_not_pass_by_the_runs_that_learned_alone(counts, outcome):
    gate = parse_gate("accuracy>=-0.01")
    result = judge(gate, "amp", estimate(0.0, -0.005, 0.005), collapsed=counts)
    assert result.outcome is outcome
    if outcome is not GateOutcome.PASSED:
        assert result.reason == f"collapsed runs: {counts.candidate} of 6, in the baseline 0 of 6"
    assert judge(gate, "amp", estimate(-0.1, -0.2, -0.05), collapsed=counts).outcome is GateOutcome.FAILED
    for text in ("accuracy<=0.5", "step_time<=1"):
        assert judge(parse_gate(text), "amp", estimate(0.3, 0.2, 0.4), collapsed=counts).outcome is GateOutcome.PASSED


def test_a_candidate_all_of_whose_runs_collapsed_fails_the_accuracy():
    result = judge(parse_gate("accuracy>=-0.01"), "amp", None, collapsed=CollapseCounts(0, 6, 6, 6))
    assert (result.outcome, result.value) == (GateOutcome.FAILED, None)
