"""Runs of other machines and other days do not decide which arm is faster."""

import math

import numpy as np
import pytest
from msgspec.structs import replace
from scipy import stats

from lightning_perf.compare.judge import exit_code
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.comparison import UnfairError
from lightning_perf.compare.verdicts.gates import Settings, parse_gate
from lightning_perf.compare.verdicts.pair import find_sessions, session_means
from lightning_perf.statistics.location import unpaired_ratio
from tests.compare.support import AMP_MS, BASE_MS, write_arms


def in_order(arms, order):
    """Let runs start one after the other, an hour each: a letter a run, ``a`` for the baseline."""
    left = {"a": list(arms["fp32"]), "b": list(arms["amp"])}
    made = {"a": [], "b": []}
    for place, letter in enumerate(order):
        made[letter].append(replace(left[letter].pop(0), started_unix_s=3600.0 * place, train_time_s=3500.0))
    return {"fp32": made["a"], "amp": made["b"]}


@pytest.mark.parametrize("fact", ["host.name", "host.kernel", "host.cpu_flags", "host.cpu_limit", "device.kind"])
@pytest.mark.parametrize("blocked", [True, False])
def test_runs_of_another_machine_are_refused_unless_allowed(arms, fact, blocked):
    made = arms(blocked=blocked, **{fact.replace(".", "__"): "other"})
    with pytest.raises(UnfairError, match=fact):
        compare_arms(made)
    assert compare_arms(made, Settings(allow=(fact.partition(".")[0],))).candidates[0].differences[0].fact == fact


def test_blocks_of_a_study_may_run_on_different_machines(arms):
    made = arms()
    for runs in made.values():
        runs[:] = [replace(run, facts={**run.facts, "host.name": f"node{n % 2}"}) for n, run in enumerate(runs)]
    assert compare_arms(made).candidates[0].verdict.kind.value == "faster"
    made["amp"][0] = replace(made["amp"][0], facts={**made["amp"][0].facts, "host.name": "node1"})
    with pytest.raises(UnfairError, match=r"host\.name"):
        compare_arms(made)


def test_one_arm_after_the_other_gives_no_verdict_on_times(arms):
    made = in_order(arms(blocked=False), "aaaaaabbbbbb")
    comparison = compare_arms(made)
    (candidate,) = comparison.candidates
    result = candidate.metric("step_time")
    assert candidate.verdict.kind.value == "inconclusive"
    assert "without an interval, because the arms did not alternate" in candidate.verdict.headline
    assert result.estimate.value == pytest.approx(math.exp(np.log(AMP_MS).mean() - np.log(BASE_MS).mean()))
    assert candidate.accuracy.lower_bound is not None
    assert exit_code(comparison) == 0  # no gate
    assert exit_code(compare_arms(made, Settings(gates=(parse_gate("step_time<=1"),)))) == 4
    assert compare_arms(made, Settings(allow=("sessions",))).candidates[0].verdict.kind.value == "faster"


def test_several_sessions_are_compared_by_their_means_as_scipy_does(arms):
    made = in_order(arms(blocked=False), "aabbaabbaabb")
    (candidate,) = compare_arms(made).candidates
    result = candidate.metric("step_time")
    base, amp = (np.log(times).reshape(3, 2).mean(axis=1) for times in (BASE_MS, AMP_MS))
    theirs = stats.ttest_ind(amp, base, equal_var=False).confidence_interval(0.95)
    assert (result.estimate.low, result.estimate.high) == pytest.approx(np.exp([theirs.low, theirs.high]), rel=1e-6)
    assert result.estimate.n == 3


def test_the_order_in_which_runs_are_given_changes_nothing(arms):
    made = in_order(arms(blocked=False), "aabbaabbaabb")
    expected = compare_arms(made).candidates
    assert compare_arms({name: runs[3:] + runs[:3] for name, runs in made.items()}).candidates == expected


def test_alternating_runs_are_a_session_each_and_so_are_runs_side_by_side(arms):
    alternating = in_order(arms(blocked=False), "abababababab")
    assert [len(set(numbers)) for numbers in find_sessions(*alternating.values())] == [6, 6]
    beside = {
        name: [replace(run, started_unix_s=3600.0 * n + (name == "amp")) for n, run in enumerate(runs)]
        for name, runs in alternating.items()
    }
    assert [len(set(numbers)) for numbers in find_sessions(*beside.values())] == [6, 6]


@pytest.mark.parametrize("sd", [0.03, 0.05])
def test_sessions_that_differ_give_no_more_false_verdicts_than_declared(sd):
    rng = np.random.default_rng(17)
    false_by_session = false_by_run = 0
    trials, numbers = 1500, np.repeat([0, 1, 2, 3], 3)
    for _ in range(trials):
        sides = [np.exp(np.repeat(rng.normal(0, sd, 4), 3) + rng.normal(0, 0.005, 12)).tolist() for _ in range(2)]
        by_session = unpaired_ratio(*(session_means(side, numbers) for side in sides))
        by_run = unpaired_ratio(*sides)
        false_by_session += not by_session.low <= 1 <= by_session.high
        false_by_run += not by_run.low <= 1 <= by_run.high
    assert false_by_session / trials < 0.065
    assert false_by_run / trials > 0.2


def test_arms_and_blocks_that_are_hours_apart_are_said_to_be(arms, tmp_path):
    days = in_order(arms(blocked=False), "aaaaaabbbbbb")
    days["amp"] = [replace(run, started_unix_s=run.started_unix_s + 3 * 86400) for run in days["amp"]]
    assert "The runs of fp32 and amp are 73 h 0 min apart." in compare_arms(days).notes
    blocked = write_arms(tmp_path / "blocked")
    assert not any("apart" in note for note in compare_arms(blocked).notes)
    blocked["amp"][2] = replace(blocked["amp"][2], started_unix_s=6 * 3600.0)
    assert any(note.startswith("Block 3: its runs started ") for note in compare_arms(blocked).notes)
