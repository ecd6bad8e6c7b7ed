import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightning_perf.compare.engines.block import Device
from lightning_perf.compare.engines.local import LocalEngine
from lightning_perf.compare.errors import CompareError, InvalidRunsError
from lightning_perf.compare.study.definition import Study, StudyArm, read_study
from lightning_perf.compare.study.lease import Lease
from lightning_perf.compare.study.results import study_arms, study_notes
from lightning_perf.compare.study.run import run_study
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.run_files import journal
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


def test_progress_tells_the_run_the_block_and_the_time_left(tmp_path, engine):
    # Runs longer than the engine's tick, so that none goes by unseen.
    arms = (fake_arm("a", "--sleep=0.7"), fake_arm("b", "--sleep=0.7"))
    _, lines = run(fake_study(arms=arms, blocks=1), tmp_path, engine)
    assert lines[0] == "run 1 of 4 · warm-up: a"
    assert any(line.startswith("run 4 of 4 · block 1 of 1: ") and line.endswith(" left") for line in lines)


def test_a_finished_study_runs_nothing_again(tmp_path, engine):
    run(fake_study(blocks=1), tmp_path, engine)
    before = sorted(tmp_path.rglob("*"))
    states, _ = run(None, tmp_path, engine)
    assert states[1].done
    assert sorted(tmp_path.rglob("*")) == before


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


DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.compare.support import fake_study, fake_arm
from lightning_perf.compare.engines.block import Device
from lightning_perf.compare.engines.local import LocalEngine
from lightning_perf.compare.study.run import run_study
arms = (fake_arm("fp32", "--sleep=0.6"), fake_arm("amp", "--sleep=0.6", "--precision=x"))
try:
    engine = LocalEngine([Device({device!r}, "")])
    run_study(fake_study(arms=arms, blocks=2), Path(sys.argv[1]), engine, lambda line: print(line, flush=True))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_or_interrupted_driver_loses_nothing_finished(tmp_path, blow):
    device = f"test-{os.getpid()}-{blow.name}"
    code = DRIVER.format(root=str(Path(__file__).parents[3]), device=device)
    driver = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    while not journal.read_block(tmp_path, 0).done:
        time.sleep(0.05)
    while journal.read_block(tmp_path, 1).open_run is None:
        time.sleep(0.02)
    time.sleep(0.3)  # amid a run
    driver.send_signal(blow)
    driver.wait(20)
    driver.stdout.close()
    assert driver.returncode == (-blow if blow is signal.SIGKILL else 130)
    state = journal.read_block(tmp_path, 1)
    assert not state.over
    # The run died with its driver, so the device is free at once.
    with Lease(Path(_leases()), device, wait=True, stop=None):
        pass
    finished = {r.path for runs in study_arms_if_any(tmp_path).values() for r in runs if r.outcome is Outcome.FINISHED}
    states, lines = run(None, tmp_path, LocalEngine([Device(device, "")]))
    assert all(state.done for state in states.values())
    assert any(line.startswith("Resuming: ") for line in lines)
    arms = study_arms(tmp_path)
    counted = [r for runs in arms.values() for r in runs if r.outcome is Outcome.FINISHED]
    assert finished <= {r.path for r in counted}
    assert sorted((r.place.block, r.place.arm) for r in counted) == sorted(
        (b, a) for b in range(3) for a in ("fp32", "amp")
    )
    assert any("cut off" in note or "stopped" in note for note in study_notes(tmp_path))


def _leases():
    from lightning_perf.compare.study.lease import device_leases

    return device_leases()


def study_arms_if_any(folder):
    try:
        return study_arms(folder)
    except CompareError:
        return {}


def test_waiting_for_a_device_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_perf.compare.study.progress.REPORT_WAIT_AFTER_S", 0.1)
    device = Device(f"test-{os.getpid()}-taken", "")
    taken = contextlib.ExitStack()
    taken.enter_context(Lease(_leases(), device.name))
    lines = []

    def on_progress(line):
        lines.append(line)
        if line.startswith("Waiting for a device"):
            taken.close()

    with_arms = fake_study(arms=(fake_arm("a", "--sleep=0.6"), fake_arm("b", "--sleep=0.6")), blocks=1)
    states = run_study(with_arms, tmp_path / "study", LocalEngine([device]), on_progress)
    assert states[1].done
    assert [line.startswith("Waiting") for line in lines[:2]] == [True, False]


def test_a_second_driver_is_refused(tmp_path, engine):
    with (
        Lease(tmp_path, "driver"),
        pytest.raises(CompareError, match="another lightning-perf process is running this study"),
    ):
        run(fake_study(), tmp_path, engine)


def test_a_folder_with_a_different_study_is_refused(tmp_path, engine):
    run(fake_study(blocks=1), tmp_path, engine)
    assert run(fake_study(blocks=1), tmp_path, engine)[0][1].done
    for changes, what in (
        ({"blocks": 2}, "blocks: 1, not 2"),
        ({"seed": 3}, "seed: 0, not 3"),
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
            run(fake_study(**{"blocks": 1} | changes), tmp_path, engine)
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


def test_the_definition_survives_the_disk(tmp_path, engine):
    study = fake_study(blocks=1, seed=5)
    run(study, tmp_path, engine)
    assert read_study(tmp_path) == study
    assert json.loads((tmp_path / "study.json").read_text())["blocks"] == 1
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(CompareError, match="cannot be read as the definition of a study"):
        read_study(tmp_path)


def test_seeds_and_folders_reach_the_command(tmp_path):
    arm = StudyArm("a", ("x", "{seed}/{block}", "{dir}", "{other}"))
    assert arm.filled(seed=4, block=2, folder=Path("{seed}")) == ["x", "4/2", "{seed}", "{other}"]


def test_order_is_that_of_the_plan():
    study = Study(arms=(fake_arm("a"), fake_arm("b")), blocks=4)
    orders = [study.order(block) for block in range(5)]
    assert orders[0] == ("a", "b")
    assert sorted(orders[1:]) == [("a", "b"), ("a", "b"), ("b", "a"), ("b", "a")]


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
    monkeypatch.undo()
    assert run(fake_study(blocks=1), tmp_path / "b", engine)[0][1].done
