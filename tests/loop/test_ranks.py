"""`PerfLoop` on several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_perf.report.document import PerfReport
from tests.callbacks.training import phases_by_step, samples, trace_files
from tests.support.processes import fork_ranks

SCRIPT = str(Path(__file__).with_name("ddp_script.py"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "fabric"])
def test_ranks_share_one_folder_and_one_report(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "perf"
    done = fork_ranks(SCRIPT, str(folder), mode)
    assert done.returncode == 0, done.stderr
    assert "PerfLoop: " not in done.stderr
    for rank in (0, 1):
        assert [row["step"] for row in samples(folder, rank)] == list(range(8))
    assert [file.name.split(".")[0] for file in trace_files(folder)] == ["rank0", "rank1"]
    assert all(phases_by_step(f) == [["fetch", "forward", "backward", "optimizer"]] * 2 for f in trace_files(folder))
    report = PerfReport.load(folder / "report.json")
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert report.distributed is not None
    assert report.distributed.matched_collectives > 0
    assert done.stdout.count("Full report: ") == 1
    assert not list(tmp_path.glob("perf_*"))


@pytest.mark.slow
def test_ranks_that_are_not_connected(tmp_path: Path) -> None:
    done = fork_ranks(SCRIPT, str(tmp_path / "perf"), "unconnected")
    assert done.returncode == 0, done.stderr
    assert [row["step"] for row in samples(tmp_path, 0)] == list(range(8))
    assert not list(tmp_path.rglob("*rank1*"))
    report = PerfReport.load(tmp_path / "perf" / "report.json")
    assert any("Only rank 0 is measured" in note for note in report.notes)
    assert done.stdout.count("Full report: ") == 1
