"""Whole tunings, with the processes that they start."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_perf.tune.campaign import run_campaign
from lightning_perf.tune.result import Outcome, TuneResult
from lightning_perf.tune.settings import TuneSettings
from tests.support.processes import Forked, dies, fork_workers, until


def children_of(root):
    """Processes in the sessions of the children of a process."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z" and (int(fields[1]) == root or int(fields[3]) in found):
            found.add(int(stat.parent.name))
    return found - {root}


@pytest.mark.slow
def test_ctrl_c_leaves_no_processes(tmp_path):
    command = [sys.executable, "-m", "lightning_perf", "tune", "tests.tune.trainings:hanging", "--levers", "precision"]
    with (tmp_path / "said").open("w") as said:
        tuner = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
    # The trial and its DataLoader worker.
    until(lambda: len(children_of(tuner.pid)) >= 2 or tuner.poll() is not None, 120)
    workers = children_of(tuner.pid)
    assert len(workers) >= 2, (tmp_path / "said").read_text()
    tuner.send_signal(signal.SIGINT)
    assert tuner.wait(30) == 130
    assert all(dies(worker, 0.5) for worker in workers)


@pytest.mark.slow
def test_a_real_tuning_finds_what_is_planted(tmp_path, monkeypatch):
    """The trials import the training from a folder that only the tuner's process searches."""
    (tmp_path / "in_a_script_folder.py").write_text("from tests.tune.trainings import planted\n")
    monkeypatch.syspath_prepend(tmp_path)
    fork_workers(monkeypatch)
    settings = TuneSettings(levers=("channels-last",), rounds=6, window_s=0.1, minutes=14)
    result = run_campaign("in_a_script_folder:planted", settings, print)
    (trial,) = result.trials
    assert trial.outcome is Outcome.SLOWER
    assert trial.measured.value > 1.5
    assert "given up after 3 rounds" in trial.reason
    assert result.machine.device == "cpu"
    assert "PL_GLOBAL_SEED" not in os.environ  # a tuning seeds its own processes, not its caller's


@pytest.mark.slow
def test_a_tuning_resumes_after_ctrl_c(tmp_path):
    command = ["-m", "tests.support.forked_cli", "tune", "tests.tune.trainings:planted", "-o", str(tmp_path)]
    command += ["--levers", "channels-last,fused-optimizer", "--rounds", "6", "--window", "0.1"]
    with (tmp_path / "said").open("w+b") as said:
        tuner = Forked(command, env=os.environ, stdout=said)
        until(lambda: (tmp_path / "tune.json").exists() or tuner.poll() is not None, 300)
        os.kill(tuner.pid, signal.SIGINT)
        assert tuner.wait(30) == 130, (tmp_path / "said").read_text()
        assert "to resume, run the same command again" in (tmp_path / "said").read_text()
        first = TuneResult.load(tmp_path / "tune.json")
        assert first.interrupted
        (decided,) = [trial for trial in first.trials if trial.measured is not None]
        assert {decided.lever, *first.open_levers} == {"channels-last", "fused-optimizer"}
        assert Forked(command, env=os.environ, stdout=said).wait(300) == 0
    second = TuneResult.load(tmp_path / "tune.json")
    assert decided in second.trials
    assert (len(second.trials), second.open_levers) == (2, ())
