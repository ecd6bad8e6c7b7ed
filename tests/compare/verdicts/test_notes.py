import dataclasses

from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.gates import Settings
from tests.compare.support import write_arms, write_run


def test_arms_that_do_not_differ_in_what_is_under_test_are_told(tmp_path):
    (note,) = (note for note in compare_arms(write_arms(tmp_path / "same")).notes if "being tested" in note)
    assert note.startswith("The records of amp and fp32 do not differ in the setting being tested (precision)")
    differing = write_arms(tmp_path / "differing", train__precision="16-mixed")
    assert not any("being tested" in note for note in compare_arms(differing).notes)


def test_arms_that_were_not_profiled_alike_are_told(tmp_path):
    made = write_arms(tmp_path)
    assert not any("profiled" in note for note in compare_arms(made).notes)
    record = made["amp"][0]
    made["amp"][0] = dataclasses.replace(record, steps=dataclasses.replace(record.steps, profiled_steps=12))
    (note,) = (note for note in compare_arms(made).notes if "profiled" in note)
    assert "profiled steps per run (fp32 0; amp 0, 12)" in note
    made["amp"] = [dataclasses.replace(r, steps=dataclasses.replace(r.steps, only_profiled=True)) for r in made["amp"]]
    assert any(note.startswith("amp: 6 of 6 runs have only profiled") for note in compare_arms(made).notes)


def test_an_accuracy_in_percent_is_told(tmp_path):
    arms = {
        name: [write_run(tmp_path / f"{name}{n}", accuracies=(90.0 + n,), train__seed=n) for n in range(3)]
        for name in "ab"
    }
    comparison = compare_arms(arms, Settings(goal=0.91))
    assert "val_acc was logged in per cent and is divided by 100 here. Goal and margin are shares." in comparison.notes
    assert comparison.arms[0].metrics["accuracy"].max == 0.92
    assert [arm.reached_goal for arm in comparison.arms] == [2, 2]
