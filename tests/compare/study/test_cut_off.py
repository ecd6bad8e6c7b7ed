"""A run that was cut off is not paired with a partner from hours ago."""

import re
import shutil
import time

import pytest

from lightning_perf.compare.engines.block import Device, run_block
from lightning_perf.compare.engines.local import LocalEngine
from lightning_perf.compare.folders import compare_runs
from lightning_perf.compare.study.definition import study_arms, study_notes
from lightning_perf.compare.study.run import run_study
from lightning_perf.run_files import journal
from lightning_perf.run_files.jsonl import JsonLines
from lightning_perf.run_files.run_record import Outcome
from tests.compare.support import fake_study

DEVICE = Device("test-cut-off", "")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "study"
    run_study(fake_study(blocks=1), folder, LocalEngine([DEVICE]), lambda line: None)
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "study")


def cut_off_after_the_first_run(folder, hours, second_run):
    """Leave a study as if it had died in the second run of block 1, hours ago."""
    path = journal.journal_path(folder, 1)
    entries = JsonLines(journal.Entry, "entry").read(path)[:3]
    path.unlink()
    for entry in entries[: 3 if second_run else 2]:
        journal.append(folder, 1, entry)
    text = path.read_text()
    path.write_text(re.sub(r'(?<="unix_s":)[\d.]+', lambda began: str(float(began[0]) - 3600 * hours), text))
    if second_run:
        record = folder / entries[2].folder / "perf" / "run.jsonl"
        lines = record.read_bytes().splitlines(keepends=True)
        record.write_bytes(b"".join(lines[:-1]))  # it was killed before its last line


@pytest.mark.parametrize(("hours", "repeated"), [(5, True), (0.1, False)])
def test_a_block_cut_off_hours_ago_is_repeated(folder, hours, repeated):
    cut_off_after_the_first_run(folder, hours, second_run=False)
    before = journal.read_block(folder, 1)
    assert len(before.finished) == 1
    run_block(folder, 1, DEVICE)
    state = journal.read_block(folder, 1)
    assert state.done
    assert state.failures == 0
    assert state.attempt == (1 if repeated else 0)
    assert len(state.finished) == 2
    notes = " ".join(study_notes(folder))
    assert ("Block 1: its finished runs were " in notes) == repeated


def test_a_run_cut_off_with_its_study_is_no_failure_of_its_arm(folder):
    cut_off_after_the_first_run(folder, 5, second_run=True)
    run_block(folder, 1, DEVICE)
    arms = study_arms(folder)
    stopped = [run for runs in arms.values() for run in runs if run.outcome is Outcome.STOPPED]
    assert [(run.place.block, run.place.attempt) for run in stopped] == [(1, 0)]
    unfinished = compare_runs(folder).candidates[0].unfinished
    assert (unfinished.baseline, unfinished.candidate) == (0, 0)


def test_long_runs_may_be_as_far_apart_as_they_take(folder):
    cut_off_after_the_first_run(folder, 1, second_run=False)
    path = journal.journal_path(folder, 1)
    seconds = journal.read_block(folder, 1).seconds[0]
    path.write_text(path.read_text().replace(str(seconds), str(seconds + 2 * 3600)))
    state = journal.read_block(folder, 1)
    assert time.time() - state.finished_unix_s < 2 * 3600
    run_block(folder, 1, DEVICE)
    assert journal.read_block(folder, 1).attempt == 0


def test_a_warm_up_is_not_repeated_and_older_journals_have_no_times(tmp_path):
    journal.append(tmp_path, 1, journal.RunOver("a", 0, 1.0))
    assert journal.read_block(tmp_path, 1).finished_unix_s is None
