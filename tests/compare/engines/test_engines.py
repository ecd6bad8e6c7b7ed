import os
import re
import signal
import socket
import sys
import threading
import time

import pytest

import lightning_perf
from lightning_perf.cli import main
from lightning_perf.compare.engines.local import SlurmEngine
from lightning_perf.compare.engines.ray import RayEngine, RayRecordings, connect
from lightning_perf.compare.study.definition import StudyArm, study_arms, study_notes
from lightning_perf.compare.study.run import run_study
from lightning_perf.errors import CompareError
from lightning_perf.lazy_imports import install_command
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files import journal
from tests.compare.support import FAKE_RUN, fake_arm, fake_study
from tests.support.trace_builder import TraceBuilder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ray_engine():
    ray = pytest.importorskip("ray")
    engine = RayEngine(gpus=1, local_gpus=1)
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("CUDA_VISIBLE_DEVICES")  # Ray declares no more GPUs than may be used, nor pretended ones
        engine.check()
    yield engine
    ray.shutdown()


def test_a_device_that_no_machine_has_is_an_error_and_no_wait(ray_engine):
    with pytest.raises(CompareError, match="has 2 GPUs"):
        RayEngine(gpus=2).check()


def test_what_goes_wrong_in_a_worker_is_told_in_its_own_words(tmp_path, ray_engine):
    class Warmed(RayEngine):
        """The first warm-up was on another device, so this one has a warm-up of its own, which fails."""

        def run(self, folder, blocks, tick):
            if 1 in blocks:
                path = folder / "blocks" / "block000.jsonl"
                path.write_text(re.sub('"device":"[^"]*"', '"device":"another"', path.read_text()))
                flag.unlink()
            super().run(folder, blocks, tick)

    flag = tmp_path / "works"
    flag.touch()
    script = f"import os,sys,runpy; sys.argv=['x']; os.path.exists({str(flag)!r}) or sys.exit('no data')"
    arm = StudyArm("a", (sys.executable, "-c", f"{script}; runpy.run_path({str(FAKE_RUN)!r}, run_name='__main__')"))
    study = fake_study(arms=(arm, fake_arm("b")), blocks=1, attempts=1)
    with pytest.raises(CompareError, match=r"^The warm-up block on gpu-0 failed, so .*: no data\)\.$") as error:
        run_study(study, tmp_path / "study", Warmed(gpus=1), lambda line: None)
    assert "Traceback" not in str(error.value)


def test_a_study_in_submitits_local_jobs(tmp_path):
    pytest.importorskip("submitit")
    states = run_study(fake_study(blocks=1), tmp_path, SlurmEngine(cluster="local"), lambda line: None)
    assert all(state.done for state in states.values())


def test_no_slurm_here_is_said():
    pytest.importorskip("submitit")
    with pytest.raises(CompareError, match="SLURM cannot be used"):
        SlurmEngine().check()


def test_a_killed_ray_worker_loses_nothing_finished_and_the_report_tells(tmp_path, ray_engine):
    """Ray itself would not repeat the block, and its driver does not see the run: only the worker's death."""
    arms = (fake_arm("a", "--sleep=0.8"), fake_arm("b", "--sleep=0.8", "--precision=x"))
    killed = []

    def kill_in_second_run():
        while not killed:
            time.sleep(0.05)
            state = journal.read_block(tmp_path, 1)
            if state.open_run is None or len(state.finished) != 1:
                continue
            log = tmp_path / state.open_run.folder / "output.log"
            words = log.read_text().split() if log.exists() else []  # the journal comes first
            if len(words) == 4:  # "training PRECISION under PID": the worker is the run's parent
                killed.append((state.open_run, state.finished, int(words[3])))
                os.kill(int(words[3]), signal.SIGKILL)

    killer = threading.Thread(target=kill_in_second_run, daemon=True)
    killer.start()
    lines = []
    states = run_study(fake_study(arms=arms, blocks=1), tmp_path, ray_engine, lines.append)
    killer.join(5)
    ((cut_off, finished, pid),) = killed
    assert pid != os.getpid()
    assert all(state.done for state in states.values())
    assert states[1].begun == 3, "the run that had finished is not run again"
    arms = study_arms(tmp_path).values()
    assert {run.facts["device.visible"] for runs in arms for run in runs} == {"0"}
    assert {run.notes["threads"] for runs in arms for run in runs} == {os.environ.get("OMP_NUM_THREADS", "not set")}
    runs = [run for runs in arms for run in runs if run.place.block == 1]
    outcomes = sorted((run.place.arm, run.outcome.value) for run in runs)
    assert outcomes == sorted([("a", "finished"), ("b", "finished"), (cut_off.arm, "interrupted")])
    (note,) = study_notes(tmp_path)
    assert note.startswith("Block 1: its Ray worker was lost (")
    assert any("its Ray worker was lost" in line for line in lines)
    (lost,) = [run for run in runs if run.outcome.value == "interrupted"]
    assert lost.path.is_relative_to(tmp_path / cut_off.folder)
    assert {cut_off.arm, *finished} == {"a", "b"}


def test_recordings_are_analysed_on_the_cluster(tmp_path, ray_engine, capsys):
    for rank in range(3):
        builder = TraceBuilder().rank(rank, 4)
        for step in range(2):
            builder.step(step, 100 * step, 100).op("aten::mm", 100 * step + 5, 30 + rank)
        builder.write(tmp_path / f"rank{rank}.pt.trace.json")
    (tmp_path / "rank3.pt.trace.json").write_text("not json")
    here = lightning_perf.analyze(tmp_path)
    assert [analysis.rank for analysis in here.ranks] == [0, 1, 2]
    assert lightning_perf.analyze(tmp_path, executor=RayRecordings()) == here
    assert main(["analyze", str(tmp_path), "--engine", "ray", "--json"]) == 0
    assert PerfReport.from_json(capsys.readouterr().out.encode()) == here


def test_an_analysis_on_a_cluster_that_is_not_there(tmp_path, monkeypatch, capsys):
    TraceBuilder().step(0, 0, 100).write(tmp_path / "a.pt.trace.json")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["analyze", str(tmp_path), "--engine", "ray"]) == 2
    assert capsys.readouterr().err == (
        f"lightning-perf: ray is not installed. Install it with: {install_command('ray')}\n"
    )


def test_a_cluster_that_does_not_answer_is_said_at_once(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # without listen: nobody answers, and no other process can take the port
        port = silent.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            refused = f"No Ray cluster answers at {address}: Connection refused."
            with pytest.raises(CompareError, match=re.escape(refused)):
                connect(address)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:99999")
    with pytest.raises(CompareError, match=re.escape("No Ray cluster answers at 127.0.0.1:99999: ")):
        connect()
