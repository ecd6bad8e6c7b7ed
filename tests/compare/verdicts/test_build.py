import math
import shutil

import numpy as np
import pytest
from scipy import stats

from lightning_perf.compare.folders import compare_runs
from lightning_perf.compare.records.record import read_record
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.gates import GateOutcome, Settings, parse_gate
from lightning_perf.errors import CompareError, InvalidRunsError
from lightning_perf.run_files.run_record import Outcome, Place
from tests.compare.support import AMP_MS, BASE_MS, write_levels, write_run


def test_blocked_runs_are_compared_in_pairs_as_scipy_does(arms):
    comparison = compare_arms(arms(train__precision="16-mixed"))
    assert comparison.blocked
    result = comparison.candidates[0].metric("step_time")
    theirs = stats.ttest_rel(np.log(AMP_MS), np.log(BASE_MS)).confidence_interval(0.95)
    assert (result.estimate.low, result.estimate.high) == pytest.approx(np.exp([theirs.low, theirs.high]), rel=1e-6)
    assert result.exact.p == pytest.approx(2 / 2**6)
    assert comparison.candidates[0].verdict.kind.value == "faster"
    assert [row.fact for row in comparison.candidates[0].differences] == ["train.precision"]


@pytest.mark.parametrize("count", [6, 4])
def test_runs_apart_are_compared_as_two_samples_and_the_note_warns_of_drift(arms, count):
    comparison = compare_arms(arms(BASE_MS, AMP_MS[:count], blocked=False))
    assert not comparison.blocked
    assert [arm.used for arm in comparison.arms] == [6, count]
    result = comparison.candidates[0].metric("step_time")
    base, amp = np.log(BASE_MS), np.log(AMP_MS[:count])
    theirs = stats.ttest_ind(amp, base, equal_var=False).confidence_interval(0.95)
    assert (result.estimate.low, result.estimate.high) == pytest.approx(np.exp([theirs.low, theirs.high]), rel=1e-6)
    if count == 6:  # with unequal numbers scipy doubles one tail instead
        exact = stats.permutation_test(
            (base, amp),
            lambda a, b, axis: a.mean(axis) - b.mean(axis),
            n_resamples=np.inf,
            vectorized=True,
        )
        assert result.exact.p == pytest.approx(exact.pvalue)
    assert any("not from the blocks of one study" in note for note in comparison.notes)


def test_a_block_with_a_run_missing_is_left_out_whole(arms):
    comparison = compare_arms(arms(BASE_MS, AMP_MS[:5]))
    assert comparison.blocked
    assert comparison.candidates[0].metric("step_time").estimate.n == 5


def test_one_run_an_arm_gives_a_change_and_a_reason_and_no_interval(arms):
    comparison = compare_arms(arms((100.0,), (94.0,)))
    for result in comparison.candidates[0].metrics:
        assert result.estimate.low is None
        assert result.estimate.high is None
        assert result.estimate.reason == "one pair of runs does not tell the spread"
        assert result.detectable is None
    assert comparison.candidates[0].metric("step_time").estimate.value == pytest.approx(0.94)
    assert comparison.candidates[0].verdict.kind.value == "inconclusive"
    assert comparison.candidates[0].accuracy.lower_bound is None
    assert comparison.drift.change.value is None
    assert comparison.drift.change.reason
    for spread in (comparison.candidates[0].time_spread, comparison.candidates[0].accuracy_spread):
        assert spread.ratio.value is None
        assert spread.reason


@pytest.mark.parametrize("blocked", [True, False])
def test_constant_times_have_no_interval_and_say_why(arms, blocked):
    comparison = compare_arms(arms((100.0,) * 6, (94.0,) * 6, blocked=blocked))
    result = comparison.candidates[0].metric("step_time")
    assert result.deterministic
    assert result.estimate.value == pytest.approx(0.94)
    assert (result.estimate.low, result.estimate.high) == (None, None)
    assert result.estimate.reason
    assert comparison.candidates[0].verdict.kind.value == "inconclusive"


@pytest.mark.parametrize("blocked", [True, False])
def test_runs_that_logged_no_accuracy_have_none_and_did_not_collapse(arms, blocked):
    gates = tuple(map(parse_gate, ("accuracy>=-0.01", "time_to_accuracy<=1")))
    comparison = compare_arms(arms(blocked=blocked, accuracies=()), Settings(gates=gates))
    assert not {"accuracy", "time_to_accuracy"} & {result.metric for result in comparison.candidates[0].metrics}
    assert [gate.outcome for gate in comparison.gates] == [GateOutcome.INCONCLUSIVE] * 2
    assert comparison.gates[1].reason == "the runs have no time_to_accuracy"
    assert [arm.collapsed.value for arm in comparison.arms] == [0, 0]
    assert "amp: 6 of 6 runs logged no val_acc." in comparison.notes


def test_collapsed_runs_are_counted_and_kept_out_of_the_accuracy(tmp_path):
    a, b = (0.88, 0.89, 0.90, 0.91, 0.90, 0.89), (0.66, 0.89, 0.90, 0.91, 0.90, 0.89)
    runs = write_levels(tmp_path, a=a, b=b)
    comparison = compare_arms(runs)
    assert [arm.collapsed.value for arm in comparison.arms] == [0, pytest.approx(1 / 6)]
    assert comparison.arms[1].metrics["accuracy"].min == 0.89
    declared = compare_arms(runs, Settings(collapse_below=0.5))
    assert declared.arms[1].metrics["accuracy"].min == 0.66


def test_a_missed_goal_is_censored_and_gives_no_ratio_of_times(arms):
    made = arms(accuracies=(0.7, 0.75, 0.8))
    comparison = compare_arms(made, Settings(goal=0.85))
    assert [arm.reached_goal for arm in comparison.arms] == [6, 0]
    assert [arm.median_time_to_accuracy_s for arm in comparison.arms] == [30.0, None]
    assert "time_to_accuracy" not in {result.metric for result in comparison.candidates[0].metrics}
    assert comparison.candidates[0].first_to_accuracy.p == pytest.approx(2 / 2**6)


@pytest.mark.parametrize(
    ("pick", "message"),
    [
        (lambda made: {}, "needs at least two arms"),
        (lambda made: {"fp32": made["fp32"]}, "needs at least two arms"),
        (lambda made: {"a": made["fp32"], "b": made["fp32"]}, r"fp32/run1/run\.jsonl: this run is given 2 times"),
        (lambda made: {"a": made["fp32"] * 2, "b": made["amp"]}, "this run is given 2 times"),
        (lambda made: made | {"amp": []}, r"amp: no valid run to compare \(it has no runs\)"),
    ],
)
def test_what_makes_no_comparison(arms, pick, message):
    with pytest.raises(CompareError, match=message):
        compare_arms(pick(arms()))


def test_a_damaged_file_of_step_times_is_told_and_the_rest_compared(tmp_path):
    arms = {name: [write_run(tmp_path / name / f"{name}{n}", train__seed=n) for n in range(3)] for name in "ab"}
    path = arms["b"][1].path.with_name("steps.rank0.jsonl")
    (line,) = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(line + b"garbage\n" + line)
    arms["b"][1] = read_record(arms["b"][1].path)
    comparison = compare_arms(arms)
    (note,) = (note for note in comparison.notes if "step times" in note)
    assert note.startswith(f"b: the step times of 1 of 3 runs cannot be read: {path}")
    assert comparison.arms[1].used == 3
    assert comparison.arms[1].metrics["step_time"].n == 2
    path.unlink()
    assert read_record(path.with_name("run.jsonl")).steps_problem is None


def test_times_to_an_accuracy_that_not_every_run_reached_have_no_ratio_and_no_test(tmp_path):
    runs = write_levels(tmp_path, a=(0.9, 0.9, 0.9, 0.9), b=(0.9, 0.9, 0.9, 0.8))
    result = compare_arms(runs, Settings(goal=0.85)).candidates[0].metric("time_to_accuracy")
    assert (result.estimate.value, result.exact.p, result.robust.value, result.detectable) == (None,) * 4
    assert "not every run reached the goal" in result.robust.reason


def test_more_collapsed_runs_keep_the_gate_on_the_accuracy_from_passing(tmp_path):
    a, b = (0.9, 0.901, 0.899, 0.9, 0.9, 0.901), (0.3, 0.901, 0.899, 0.9, 0.901, 0.9)
    runs = write_levels(tmp_path, a=a, b=b)
    (gate,) = compare_arms(runs, Settings(gates=(parse_gate("accuracy>=-0.01"),))).gates
    assert (gate.outcome, gate.reason) == (
        GateOutcome.INCONCLUSIVE,
        "collapsed runs: 1 of 6, in the baseline 0 of 6",
    )


def test_arms_without_a_block_in_common_cannot_be_compared(tmp_path):
    runs = {
        name: [write_run(tmp_path / name, place=Place("s", name, block, 0), train__seed=block)]
        for name, block in (("a", 1), ("b", 2))
    }
    with pytest.raises(InvalidRunsError, match="b: no block has valid runs of both b and a"):
        compare_arms(runs)


def test_bounds_of_the_accuracy_hold_for_all_candidates_together(tmp_path):
    levels = {name: [0.9 + 0.001 * ((n * arm) % 5) for n in range(6)] for arm, name in enumerate("abc", start=2)}
    comparison = compare_arms(write_levels(tmp_path, **levels))
    for candidate in comparison.candidates:
        assert candidate.accuracy.confidence == pytest.approx(0.975)
        a, b = ([run.values["accuracy"] for run in comparison.runs if run.arm == name] for name in ("a", candidate.arm))
        theirs = stats.ttest_ind(b, a, equal_var=False, alternative="greater").confidence_interval(0.975)
        assert candidate.accuracy.lower_bound == pytest.approx(theirs.low)


def test_a_spread_beyond_floats_makes_no_error(arms):
    comparison = compare_arms(arms((1e-3, 1e10, 1e-3), (1e10, 1e-3, 1e10)))
    result = comparison.candidates[0].metric("step_time")
    assert result.detectable is None or math.isfinite(result.detectable)
    assert comparison.candidates[0].verdict.kind.value == "inconclusive"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"outcome": None}, "interrupted"),
        ({"outcome": Outcome.FAILED}, "failed"),
        ({"outcome": Outcome.STOPPED}, "stopped"),
        ({"problems": ("throttled by heat", "process 77 on the device")}, "invalid: throttled by heat; process 77"),
    ],
)
def test_runs_that_do_not_count_are_left_out_with_their_reason(tmp_path, changes, reason):
    runs = {
        "a": [write_run(tmp_path / "a" / f"a{n}") for n in range(3)],
        "b": [write_run(tmp_path / "b" / f"b{n}", **(changes if n == 0 else {})) for n in range(3)],
    }
    comparison = compare_arms(runs)
    assert [arm.used for arm in comparison.arms] == [3, 2]
    ((left_out, count),) = comparison.arms[1].left_out.items()
    assert left_out.startswith(reason)
    assert count == 1
    with pytest.raises(InvalidRunsError, match=f"b: no valid run to compare \\(1 {reason}"):
        compare_arms({"a": runs["a"], "b": runs["b"][:1]})


def test_warm_up_and_repeated_blocks_do_not_count(tmp_path):
    def run(name, block, attempt):
        place = Place("s", name, block, 0, attempt)
        return write_run(tmp_path / f"{name}-{block}-{attempt}", place=place, train__seed=block)

    # In the first attempt of block 1 the run of b failed: that of a is repeated with it.
    comparison = compare_arms(
        {
            "a": [run("a", 0, 0), run("a", 1, 0), run("a", 1, 1), run("a", 2, 0)],
            "b": [run("b", 0, 0), run("b", 1, 1), run("b", 2, 0)],
        }
    )
    assert comparison.blocked
    assert comparison.arms[0].left_out == {"warm-up": 1, "of a repeated block": 1}
    assert [arm.used for arm in comparison.arms] == [2, 2]


def test_a_block_of_another_study_with_the_same_number_is_another_block(tmp_path):
    def run(study, name, attempt):
        return write_run(tmp_path / f"{study}-{name}", place=Place(study, name, 1, 0, attempt))

    comparison = compare_arms({"a": [run("s", "a", 1)], "b": [run("t", "b", 0)]})
    assert [arm.left_out for arm in comparison.arms] == [{}, {}]


def test_empty_records_of_crashed_runs_count_as_unfinished(tmp_path):
    for name in "ab":
        for number in range(6):
            write_run(tmp_path / name / f"{name}{number}", step_ms=100 + number, started=float(number))
    for number in range(3):
        (tmp_path / "b" / f"b{number}" / "run.jsonl").write_bytes(b"")
    comparison = compare_runs({name: tmp_path / name for name in "ab"})
    assert comparison.arms[1].left_out == {"failed": 3}
    assert comparison.candidates[0].verdict.kind.value == "unfinished"
    assert comparison.candidates[0].verdict.headline.startswith("b did not finish 3 of 6 runs (a: 0 of 6)")


def test_copied_folders_count_once_and_are_no_other_arm(tmp_path):
    for name in "ab":
        for number in range(3):
            write_run(tmp_path / name / f"{name}{number}", step_ms=100 + number, started=float(number))
    shutil.copytree(tmp_path / "b" / "b1", tmp_path / "b" / "b1 (copy)")
    comparison = compare_runs({name: tmp_path / name for name in "ab"})
    assert [arm.used for arm in comparison.arms] == [3, 3]
    assert comparison.arms[1].left_out == {"a copy of another run": 1}
    shutil.copytree(tmp_path / "a" / "a1", tmp_path / "b" / "a1")
    with pytest.raises(CompareError, match=r"b/a1/run.jsonl: a copy of .*a/a1/run.jsonl. Give b runs of its own"):
        compare_runs({name: tmp_path / name for name in "ab"})
