"""Notes on the design of a comparison, and sentences on other load on the machine."""

import math

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from scipy import stats

from lightning_perf.compare.judge import exit_code
from lightning_perf.compare.records.record import RunRecord, read_record
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.checks import busy_lines
from lightning_perf.compare.verdicts.comparison import UnfairError
from lightning_perf.compare.verdicts.gates import GateOutcome, Settings, parse_gate
from lightning_perf.compare.verdicts.pair import find_sessions, session_means
from lightning_perf.run_files.run_record import Outcome, Place
from lightning_perf.run_files.steps import STEPS, StepSample
from lightning_perf.statistics.location import unpaired_ratio
from tests.compare.support import AMP_MS, BASE_MS, write_arms, write_levels, write_run


def test_arms_that_do_not_differ_in_what_is_under_test_are_told(tmp_path):
    (note,) = (note for note in compare_arms(write_arms(tmp_path / "same")).notes if "being tested" in note)
    assert note.startswith("The records of amp and fp32 do not differ in the setting being tested (precision)")
    differing = write_arms(tmp_path / "differing", train__precision="16-mixed")
    assert not any("being tested" in note for note in compare_arms(differing).notes)


def test_arms_that_were_not_profiled_alike_are_told(tmp_path):
    made = write_arms(tmp_path)
    assert not any("profiled" in note for note in compare_arms(made).notes)
    record = made["amp"][0]
    made["amp"][0] = replace(record, steps=replace(record.steps, profiled_steps=12))
    (note,) = (note for note in compare_arms(made).notes if "profiled" in note)
    assert "profiled steps per run (fp32 0; amp 0, 12)" in note
    made["amp"] = [replace(r, steps=replace(r.steps, only_profiled=True)) for r in made["amp"]]
    assert any(note.startswith("amp: 6 of 6 runs have only profiled") for note in compare_arms(made).notes)


def test_an_accuracy_in_percent_is_told(tmp_path):
    comparison = compare_arms(write_levels(tmp_path, a=(90.0, 91.0, 92.0), b=(90.0, 91.0, 92.0)), Settings(goal=0.91))
    assert "val_acc was logged in per cent and is divided by 100 here. Goal and margin are shares." in comparison.notes
    assert comparison.arms[0].metrics["accuracy"].max == 0.92
    assert [arm.reached_goal for arm in comparison.arms] == [2, 2]


def with_load(runs, **changes):
    return [replace(run, **{name: values[n] for name, values in changes.items()}) for n, run in enumerate(runs)]


def test_the_verdict_says_how_much_other_processes_took(tmp_path):
    arms = write_arms(tmp_path)
    arms["fp32"] = with_load(arms["fp32"], other_cpu_share=(0.41, 0.44, 0.5, 0.48, 0.42, 0.45))
    arms["amp"] = with_load(arms["amp"], other_cpu_share=(0.03,) * 6)
    (candidate,) = compare_arms(arms).candidates
    assert next(line for line in candidate.verdict.details if "busy" in line) == (
        "The machine was busy: other processes took 41 to 50 % during fp32 and 3 % during amp of the processors' time."
    )


def test_a_quiet_machine_is_not_mentioned(tmp_path):
    arms = write_arms(tmp_path)
    quiet = {
        name: with_load(runs, other_cpu_share=(0.02,) * 6, cpu_throttled_share=(0.0,) * 6)
        for name, runs in arms.items()
    }
    assert busy_lines(quiet) == busy_lines(arms) == ()


def test_a_cpu_quota_and_throttled_devices_are_said(tmp_path):
    arms = write_arms(tmp_path)
    arms["amp"] = with_load(arms["amp"], cpu_throttled_share=(0.0, 0.31, 0.1, 0.0, 0.0, 0.2))
    arms["amp"].append(write_run(tmp_path / "hot", problems=("the device was throttled by the driver, too hot",)))
    assert busy_lines(arms) == (
        "A CPU quota held the runs back for 0 to 31 % of amp.",
        "Left out as invalid, 1 of 7 runs of amp: the device was throttled by the driver, too hot.",
    )


@pytest.mark.parametrize(("load", "said"), [(7.9, True), (0.4, False)])
def test_older_records_have_the_load_at_their_start(tmp_path, load, said):
    arms = {
        name: with_load(runs, notes=({"load_1min": load, "cpus": 2},) * 6)
        for name, runs in write_arms(tmp_path).items()
    }
    text = "The machine may have been busy: the load was up to 7.9 on 2 processors when runs started "
    text += "(including earlier runs)."
    assert busy_lines(arms) == ((text,) if said else ())


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


def with_steps(run: RunRecord, samples: int, *, growth: float = 0.0) -> RunRecord:
    """Let the steps of a run have so many samples, and become slower by a share."""
    assert run.steps is not None
    mean_ns = run.steps.mean_ns
    steps = [StepSample(n, round(mean_ns * (1 + growth * (n / 99 - 0.5))), 0, None, samples, False) for n in range(100)]
    (run.path.parent / "steps.rank0.jsonl").write_bytes(STEPS.encode(*steps))
    return read_record(run.path)


def test_half_the_samples_per_step_are_compared_per_sample(arms):
    made = arms(BASE_MS, tuple(0.55 * ms for ms in AMP_MS))
    made["amp"] = [with_steps(run, 16) for run in made["amp"]]
    gates = Settings(gates=(parse_gate("step_time<=1.0"), parse_gate("throughput>=0.99")))
    comparison = compare_arms(made, gates)
    (candidate,) = comparison.candidates
    assert candidate.verdict.kind.value == "slower"
    per_sample = sum(AMP_MS) * 2 * 0.55 / sum(BASE_MS)
    assert f"time per sample +{100 * (per_sample - 1):.1f} %" in candidate.verdict.headline
    assert [gate.outcome for gate in comparison.gates] == [GateOutcome.INCONCLUSIVE, GateOutcome.FAILED]
    assert "the runs have 16 samples per step, those of the baseline 32" in comparison.gates[0].reason
    assert any("step time of amp is not compared: the runs have 16 samples" in note for note in comparison.notes)
    allowed = compare_arms(made, Settings(allow=("work",)))
    assert allowed.candidates[0].verdict.kind.value == "faster"


def test_a_candidate_that_stopped_early_is_not_faster(arms):
    made = arms()
    made["fp32"] = [with_epochs(run, 40) for run in made["fp32"]]
    made["amp"] = [with_epochs(run, 15) for run in made["amp"]]
    comparison = compare_arms(made, Settings(gates=(parse_gate("train_time<=1.0"),)))
    (candidate,) = comparison.candidates
    assert candidate.verdict.kind.value == "inconclusive"
    assert "the runs have 15 epochs, those of the baseline 40" in candidate.verdict.headline
    assert exit_code(comparison) == 4
    assert candidate.metric("train_time").estimate.value == pytest.approx(15 / 40)


def with_epochs(run: RunRecord, count: int) -> RunRecord:
    """Let a run without step times have trained so many epochs, at the same speed."""
    epochs = tuple(
        msgspec.structs.replace(run.epochs[0], epoch=number, steps=10 * (number + 1)) for number in range(count)
    )
    return replace(run, steps=None, epochs=epochs, train_time_s=(run.train_time_s or 0.0) * count)


def test_steps_that_become_slower_in_one_arm_only_are_noted(arms):
    made = arms()
    made["amp"] = [with_steps(run, 32, growth=0.2) for run in made["amp"]]
    made["fp32"] = [with_steps(run, 32) for run in made["fp32"]]
    (note,) = (note for note in compare_arms(made).notes if note.startswith("Within a run"))
    assert "+16 % in amp and +0 % in fp32" in note
    made["fp32"] = [with_steps(run, 32, growth=0.2) for run in made["fp32"]]
    assert not [note for note in compare_arms(made).notes if note.startswith("Within a run")]


def test_another_frequency_of_validation_is_refused(arms):
    with pytest.raises(UnfairError, match="check_val_every_n_epoch"):
        compare_arms(arms(train__check_val_every_n_epoch=5))


GATE = parse_gate("step_time<=1.05")


def crash(arms, folder, blocks, outcome, *, blocked=True, again=None, start=0.5):
    """Add a crashed run of the candidate in each of these blocks; `again` says in which attempt."""
    for block in blocks:
        place = Place("s", "amp", block, 1, again or 0, ("precision",)) if blocked else None
        run = write_run(folder / f"crash{block}", outcome=outcome, place=place, started=start, train__seed=block)
        arms["amp"].append(run)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, None])
@pytest.mark.parametrize("blocked", [True, False])
def test_a_candidate_that_crashes_in_half_of_the_blocks_fails_the_gate(arms, tmp_path, outcome, blocked):
    made = arms(blocked=blocked)
    made["amp"] = made["amp"][:3]
    crash(made, tmp_path, (4, 5, 6), outcome, blocked=blocked)
    allow = () if blocked else ("seed",)
    comparison = compare_arms(made, Settings(gates=(GATE,), allow=allow))
    (candidate,) = comparison.candidates
    assert (candidate.unfinished.baseline, candidate.unfinished.of_baseline) == (0, 6)
    assert (candidate.unfinished.candidate, candidate.unfinished.of_candidate) == (3, 6)
    unit = "blocks" if blocked else "runs"
    assert candidate.verdict.kind.value == "unfinished"
    assert candidate.verdict.headline.startswith("amp did not finish " + ("in " if blocked else "") + f"3 of 6 {unit}")
    assert [gate.outcome for gate in comparison.gates] == [GateOutcome.PASSED, GateOutcome.FAILED]
    assert comparison.gates[1].gate == "failures"
    assert exit_code(comparison) == 1
    assert exit_code(compare_arms(made, Settings(allow=allow))) == 1
    allowed = compare_arms(made, Settings(gates=(GATE,), allow=(*allow, "failures")))
    assert (exit_code(allowed), allowed.candidates[0].verdict.kind.value) == (0, "faster")
    assert any(
        "that did not finish: 3 of 6, in the baseline 0 of 6" in d for d in allowed.candidates[0].verdict.details
    )


def test_a_run_that_crashed_and_was_repeated_still_counts(arms, tmp_path):
    made = arms()
    crash(made, tmp_path, (2, 5), Outcome.FAILED)
    assert compare_arms(made).candidates[0].verdict.headline.startswith("amp did not finish in 2 of 6 blocks (fp32: 0")


def test_what_the_user_stopped_or_a_reboot_cut_off_does_not_count(arms, tmp_path):
    made = arms()
    crash(made, tmp_path / "stopped", (2,), Outcome.STOPPED)
    crash(made, tmp_path / "cut", (3,), None)  # its attempt was completed by a later run
    assert compare_arms(made).candidates[0].unfinished.candidate == 0
    made = write_arms(tmp_path / "b")
    crash(made, tmp_path / "running", (7,), None, start=1000.0)
    assert compare_arms(made).candidates[0].unfinished.candidate == 0


def test_a_baseline_that_crashes_as_often_decides_nothing(arms, tmp_path):
    made = arms()
    for name in made:
        place = Place("s", name, 7, 0)
        made[name].append(write_run(tmp_path / f"x{name}", outcome=Outcome.FAILED, place=place, started=0.1))
    (candidate,) = compare_arms(made).candidates
    assert candidate.verdict.kind.value == "faster"
    assert "Blocks with a run that did not finish: 1 of 7, in the baseline 1 of 7." in candidate.verdict.details
