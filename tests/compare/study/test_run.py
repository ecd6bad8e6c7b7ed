import contextlib
import errno
import os
import shutil
import sys
from pathlib import Path

import pytest

from lightning_perf.compare.engines.block import Device
from lightning_perf.compare.engines.local import LocalEngine
from lightning_perf.compare.study.checkouts import Lease, device_leases
from lightning_perf.compare.study.definition import StudyArm, read_study, study_arms, study_notes
from lightning_perf.compare.study.run import run_study
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.errors import CompareError, InvalidRunsError
from lightning_perf.run_files.run_record import Outcome
from tests.compare.support import FAKE_RUN, fake_arm, fake_study

DEVICE = Device(f"test-{os.getpid()}", "")


class RemovesFile(LocalEngine):
    """Removes a file before it runs block 1, so that a program that looks for the file behaves differently."""

    def __init__(self, file):
        super().__init__([DEVICE])
        self.file = file

    def run(self, folder, blocks, tick):
        if 1 in blocks:
            self.file.unlink()
        super().run(folder, blocks, tick)


@pytest.fixture
def engine(tmp_path):
    return LocalEngine([DEVICE])


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "study"
    run_study(fake_study(blocks=1, seed=5), folder, LocalEngine([DEVICE]), lambda line: None)
    return folder


@pytest.fixture
def finished(template, tmp_path):
    """The folder of a study that is over."""
    return shutil.copytree(template, tmp_path / "finished")


def run(study, folder, engine):
    lines = []
    states = run_study(study, folder, engine, lines.append)
    return states, lines


def test_every_arm_runs_once_a_block_and_the_comparison_sees_the_difference(tmp_path, engine):
    states, _ = run(fake_study(blocks=3), tmp_path, engine)
    assert [state.done for state in states.values()] == [True] * 4
    arms = study_arms(tmp_path)
    assert {name: len(runs) for name, runs in arms.items()} == {"fp32": 4, "amp": 4}
    for block in range(4):
        seeds = {run.facts["train.seed"] for runs in arms.values() for run in runs if run.place.block == block}
        assert seeds == {block}
    comparison = compare_arms(arms)
    assert comparison.blocked
    assert comparison.treatment == ("precision",)
    assert [arm.used for arm in comparison.arms] == [3, 3]
    assert comparison.arms[0].left_out == {"warm-up": 1}
    assert comparison.candidates[0].verdict.kind.value == "faster"
    assert study_notes(tmp_path) == ()


@pytest.mark.parametrize("study", [None, fake_study(blocks=1, seed=5)])
def test_a_finished_study_runs_nothing_again(finished, engine, study):
    before = sorted(finished.rglob("*"))
    states, _ = run(study, finished, engine)
    assert states[1].done
    assert sorted(finished.rglob("*")) == before


def test_a_killed_run_repeats_its_whole_block_and_the_report_tells(tmp_path):
    marker = tmp_path / "died"
    marker.touch()
    study = fake_study(arms=(fake_arm("fp32"), fake_arm("amp", "--precision=x", f"--die-once={marker}")), blocks=2)
    folder = tmp_path / "study"
    states, lines = run(study, folder, RemovesFile(marker))
    assert states[1].done
    assert states[1].attempt == 1
    assert any("SIGKILL" in line for line in lines)
    assert "SIGKILL" in study_notes(folder)[0]
    assert "whole block is repeated" in study_notes(folder)[0]
    arms = study_arms(folder)
    used = [(r.place.block, r.place.attempt) for r in arms["amp"] if r.outcome is Outcome.FINISHED]
    assert sorted(used) == [(0, 0), (1, 1), (2, 0)]
    assert [r.outcome for r in arms["amp"] if r.place.attempt == 0 and r.place.block == 1] == [Outcome.INTERRUPTED]
    comparison = compare_arms(arms)
    assert comparison.blocked
    assert [arm.used for arm in comparison.arms] == [2, 2]


def test_a_block_that_keeps_failing_is_given_up_and_left_out(tmp_path):
    flag = tmp_path / "works"
    # It leaves a whole record and fails all the same, as a program that crashes at its end.
    script = (
        f"import os,sys,runpy; sys.argv=['x','--precision=x']; runpy.run_path({str(FAKE_RUN)!r}, run_name='__main__')"
    )
    arm = StudyArm("bad", (sys.executable, "-c", f"{script}; os.path.exists({str(flag)!r}) or sys.exit(9)"))
    flag.touch()
    folder = tmp_path / "study"
    study = fake_study(arms=(fake_arm("fp32"), arm), blocks=1, attempts=2)
    states, _ = run(study, folder, RemovesFile(flag))
    assert (states[1].over, states[1].done) == (True, False)
    notes = study_notes(folder)
    assert "exit code 9" in notes[0]
    assert "left out" in notes[-1]
    of_block = [record for record in study_arms(folder)["bad"] if record.place.block == 1]
    assert [record.outcome for record in of_block] == [Outcome.FINISHED] * 2
    assert {record.problems for record in of_block} == {("its block was given up",)}
    with pytest.raises(InvalidRunsError, match="no valid run to compare"):
        compare_arms(study_arms(folder))


def test_a_warm_up_that_fails_stops_the_study_with_the_programs_words(tmp_path, engine):
    bad = StudyArm("bad", (sys.executable, "-c", "raise SystemExit('no data in /nowhere')"))
    with pytest.raises(
        CompareError,
        match=r"so the other blocks did not run: the run of bad failed \(.*no data in /nowhere\)\.$",
    ):
        run(fake_study(arms=(bad, fake_arm("other")), attempts=1), tmp_path, engine)


def test_a_command_that_is_not_there_and_one_without_a_record_say_so(tmp_path, engine):
    with pytest.raises(CompareError, match="no-such-program"):
        run(fake_study(arms=(StudyArm("a", ("no-such-program",)), fake_arm("b")), attempts=1), tmp_path / "1", engine)
    with pytest.raises(CompareError, match="PerfCallback"):
        run(fake_study(arms=(StudyArm("a", ("true",)), fake_arm("b")), attempts=1), tmp_path / "2", engine)


def test_waiting_the_run_the_block_and_the_time_left_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_perf.compare.study.run.REPORT_WAIT_AFTER_S", 0.1)
    device = Device(f"test-{os.getpid()}-taken", "")
    taken = contextlib.ExitStack()
    taken.enter_context(Lease(device_leases(), device.name))
    lines = []

    def on_progress(line):
        lines.append(line)
        if line.startswith("Waiting for a device"):
            taken.close()

    # Runs longer than the engine's tick, so that none goes by unseen.
    arms = (fake_arm("a", "--sleep=0.7"), fake_arm("b", "--sleep=0.7"))
    states = run_study(fake_study(arms=arms, blocks=1), tmp_path / "study", LocalEngine([device]), on_progress)
    assert states[1].done
    assert lines[0].startswith("Waiting for a device")
    assert lines[1] == "run 1 of 4 · warm-up: a"
    assert any(line.startswith("run 4 of 4 · block 1 of 1: ") and line.endswith(" left") for line in lines)


def test_a_second_driver_is_refused(tmp_path, engine):
    with (
        Lease(tmp_path, "driver"),
        pytest.raises(CompareError, match="another lightning-perf process is running this study"),
    ):
        run(fake_study(), tmp_path, engine)


def test_a_folder_with_a_different_study_is_refused(finished, tmp_path, engine):
    for changes, what in (
        ({"blocks": 2}, "blocks: 1, not 2"),
        ({"seed": 3}, "seed: 5, not 3"),
        ({"arms": (fake_arm("fp32"), fake_arm("bf16"))}, "arms: fp32, amp, not fp32, bf16"),
        (
            {"arms": (fake_arm("fp32"), fake_arm("amp", "--step-ms=9"))},
            "command of amp: .*--step-ms=8 .*, not .*--step-ms=9",
        ),
        (
            {"arms": (StudyArm("fp32", fake_arm("fp32").command, {"X": "1"}), fake_study().arms[1])},
            "environment of fp32: ",
        ),
    ):
        with pytest.raises(CompareError, match=rf"different study \({what}"):
            run(fake_study(**{"blocks": 1, "seed": 5} | changes), finished, engine)
    with pytest.raises(CompareError, match="no study to resume"):
        run(None, tmp_path / "empty", engine)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": (fake_arm("a"),)}, "two arms"),
        ({"arms": (fake_arm("a"), fake_arm("a"))}, "same name"),
        ({"arms": (fake_arm("a/b"), fake_arm("b"))}, "is not a valid name"),
        ({"arms": (StudyArm("a", ()), fake_arm("b"))}, "no command"),
        ({"blocks": 0}, "at least 1 of --blocks"),
    ],
)
def test_definitions_that_make_no_study(changes, message):
    with pytest.raises(CompareError, match=message):
        fake_study(**changes)


def test_a_damaged_definition_is_an_error(tmp_path):
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(CompareError, match="is not the definition of a study"):
        read_study(tmp_path)


def test_seeds_and_folders_reach_the_command(tmp_path):
    arm = StudyArm("a", ("x", "{seed}/{block}", "{dir}", "{other}"))
    assert arm.filled(seed=4, block=2, folder=Path("{seed}")) == ["x", "4/2", "{seed}", "{other}"]


def test_a_folder_that_cannot_be_written_and_a_lost_workdir_are_told(tmp_path, engine, monkeypatch):
    with pytest.raises(CompareError, match=r"gone: no such folder, and the study's commands run in it"):
        run(fake_study(workdir=str(tmp_path / "gone")), tmp_path / "a", engine)
    (tmp_path / "file").write_text("")
    with pytest.raises(CompareError, match=r"file.*: the study cannot continue \(Not a directory\)"):
        run(fake_study(), tmp_path / "file" / "study", engine)

    def full(path, content, *, durable):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("lightning_perf.run_files.jsonl.append", full)
    with pytest.raises(CompareError, match=r"block000.jsonl: the study cannot continue \(No space left on device\)"):
        run(fake_study(), tmp_path / "b", engine)
