"""Notes on the design of a comparison, and sentences on other load on the machine."""

import pytest
from msgspec.structs import replace

from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.checks import busy_lines
from lightning_perf.compare.verdicts.gates import Settings
from tests.compare.support import write_arms, write_levels, write_run


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
