"""`PerfCallback` on two processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_perf.compare.record import Outcome, find_records
from lightning_perf.report.document import from_json
from tests.callbacks.training import PACKAGES, events, phases_by_step, samples, step_marks, trace_files

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(__file__).with_name("ddp_script.py")), *arguments]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    # A group of its own: Lightning starts the other rank as a child, and a hanging test must leave neither behind.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        pytest.fail(f"two processes did not end\n{output}\n{errors}")
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strategy"),
    [(PACKAGES[0], "ddp"), (PACKAGES[1], "ddp_spawn"), (PACKAGES[0], "ddp_notebook")],
)
def test_every_rank_leaves_as_many_windows_in_one_folder(tmp_path: Path, name: str, strategy: str) -> None:
    done = run(name, strategy, str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PerfCallback:" not in done.stderr
    files = trace_files(tmp_path)
    (folder,) = {file.parent for file in files}
    assert folder == tmp_path / "lightning_logs" / "version_0" / "perf"
    assert [file.name.split(".")[0] for file in files] == ["rank0", "rank0", "rank1", "rank1"]
    for first, second in (files[:2], files[2:]):
        assert [m.name for m in step_marks(first)] == ["ProfilerStep#2", "ProfilerStep#3"]
        assert [m.name for m in step_marks(second)] == ["ProfilerStep#5", "ProfilerStep#6"]
        assert phases_by_step(first) == [["fetch", "transfer", "forward", "optimizer", "backward", "optimizer"]] * 2
        assert any("allreduce" in e["name"] for e in events(first)), "the gradients were not averaged"
    for rank in (0, 1):
        assert [row["step"] for row in samples(tmp_path, rank)] == list(range(8))
    report = from_json((folder / "report.json").read_bytes())
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert all(len(rank.breakdown.steps) == 4 for rank in report.ranks)
    assert done.stdout.count("\nWhy ") == 1, "one report, not one a rank"
    (record,) = find_records(tmp_path)  # of rank 0 alone
    assert record.path.parent == folder
    assert record.outcome is Outcome.FINISHED
    assert record.facts["train.world_size"] == 2
    assert [(e.epoch, e.steps, set(e.metrics)) for e in record.epochs] == [(0, 8, {"loss"})]


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_run_as_without_the_callback(tmp_path: Path) -> None:
    done = run(PACKAGES[0], "ddp", str(tmp_path), "fail")
    assert done.returncode != 0
    assert "rank 1 fails" in done.stderr
    rank_1 = [file for file in trace_files(tmp_path) if file.name.startswith("rank1.")]
    assert [m.name for m in step_marks(rank_1[0])] == ["ProfilerStep#2", "ProfilerStep#3"]
    assert [m.finished for m in step_marks(rank_1[0])] == [True, False]
    (record,) = find_records(tmp_path)
    assert record.outcome is not Outcome.FINISHED
