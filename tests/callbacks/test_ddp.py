"""`PerfCallback` on several processes: Lightning's own launcher, torchrun, SLURM."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lightning_perf import analyze
from lightning_perf.analysis.ranks.whole_fit import LateRank
from lightning_perf.compare.records.record import find_records
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.fit.account import account_paths, read_account
from lightning_perf.run_files.run_record import Outcome
from tests.callbacks.training import PACKAGES, events, phases_by_step, samples, step_marks, trace_files
from tests.support.processes import ABORTED_AT_EXIT, fork_ranks

SCRIPT = str(Path(__file__).with_name("ddp_script.py"))


def launch(name: str, strategy: str, folder: Path, *mode: str) -> subprocess.CompletedProcess[str]:
    """Run the script once: Lightning's own launcher starts the other rank."""
    done = fork_ranks(SCRIPT, name, strategy, str(folder), *mode, ranks=1, variables={})
    if done.returncode and ABORTED_AT_EXIT in done.stderr and "`Trainer.fit` stopped" in done.stderr:
        shutil.rmtree(folder)
        folder.mkdir()
        done = fork_ranks(SCRIPT, name, strategy, str(folder), *mode, ranks=1, variables={})
    return done


def fork(mode: str, folder: Path, ranks: int = 2, variables: dict[str, str] | None = None) -> PerfReport:
    """Run the script on ranks that are already there, and return its report."""
    done = fork_ranks(SCRIPT, PACKAGES[0], "ddp", str(folder), mode, str(ranks), ranks=ranks, variables=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Full report: ") == 1, "one report, not one per rank"
    assert "PerfCallback:" not in done.stderr
    return report_in(folder)


def report_in(folder: Path) -> PerfReport:
    (file,) = folder.rglob("report.json")
    return PerfReport.from_json(file.read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strategy"),
    [(PACKAGES[0], "ddp"), (PACKAGES[1], "ddp_spawn"), (PACKAGES[0], "ddp_notebook")],
)
def test_every_rank_leaves_as_many_windows_in_one_folder(tmp_path: Path, name: str, strategy: str) -> None:
    # Lightning's own launcher starts the rank that dies below.
    done = fork_ranks(SCRIPT, name, "ddp", str(tmp_path)) if strategy == "ddp" else launch(name, strategy, tmp_path)
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
    report = PerfReport.from_json((folder / "report.json").read_bytes())
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert all(len(rank.breakdown.steps) == 4 for rank in report.ranks)
    assert done.stdout.count("Full report: ") == 1, "one report, not one per rank"
    (record,) = find_records(tmp_path)  # of rank 0 alone
    assert record.path.parent == folder
    assert record.outcome is Outcome.FINISHED
    assert record.facts["train.world_size"] == 2
    assert [(e.epoch, e.steps, set(e.metrics)) for e in record.epochs] == [(0, 8, {"loss"})]


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_run_as_without_the_callback(tmp_path: Path) -> None:
    done = fork_ranks(SCRIPT, PACKAGES[0], "ddp", str(tmp_path), "fail")
    assert done.returncode != 0
    assert "rank 1 fails" in done.stderr
    rank_1 = [file for file in trace_files(tmp_path) if file.name.startswith("rank1.")]
    assert [m.name for m in step_marks(rank_1[0])] == ["ProfilerStep#2", "ProfilerStep#3"]
    assert [m.finished for m in step_marks(rank_1[0])] == [True, False]
    (record,) = find_records(tmp_path)
    assert record.outcome is not Outcome.FINISHED


@pytest.mark.slow
def test_torchrun_and_ranks_with_different_numbers_of_windows(tmp_path: Path) -> None:
    elastic = {"LOCAL_RANK": "{rank}", "RANK": "{rank}", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    report = fork("windows", tmp_path, variables=elastic)
    assert [(rank.rank, len(rank.breakdown.steps)) for rank in report.ranks] == [(0, 4), (1, 2)]
    assert report.distributed is not None
    assert report.distributed.matched_collectives > 0
    flags = report.ranks[0].stop_flags
    assert flags is not None, "Lightning's own broadcast before each batch, of 2.5.6 and later"
    assert flags.calls == flags.steps == 4
    assert report.trust is not None
    assert report.trust.steps == 6
    assert len(report.trust.windows) == 2, "of rank 0, whose steps are timed in the report"
    assert not list(tmp_path.rglob(".rank*")), "markers are left behind"


@pytest.mark.slow
def test_fsdp(tmp_path: Path) -> None:
    report = fork("fsdp", tmp_path)
    assert [(rank.rank, len(rank.breakdown.steps)) for rank in report.ranks] == [(0, 4), (1, 4)]
    for rank in report.ranks:
        assert rank.operators is not None
        assert {"c10d::_allgather_base_", "c10d::_reduce_scatter_base_"} <= {row.name for row in rank.operators.rows}
    assert report.distributed is not None
    assert report.distributed.matched_collectives > 0


@pytest.mark.slow
def test_slurm_and_chosen_ranks(tmp_path: Path) -> None:
    slurm = {
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_JOB_ID": "70001",
        "SLURM_JOB_NAME": "training",
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": "localhost",
        "SLURM_PROCID": "{rank}",
        "SLURM_LOCALID": "{rank}",
    }
    report = fork("chosen", tmp_path, variables=slurm)
    assert [rank.rank for rank in report.ranks] == [1]
    assert "Rank 0 recorded no step: PerfCallback(ranks=…) does not list it." in report.notes
    assert report.step_times is not None, "every rank is timed"
    assert [row["step"] for row in samples(tmp_path, 1)] == list(range(8))


@pytest.mark.slow
def test_folders_that_are_not_shared_are_analysed_afterwards(tmp_path: Path) -> None:
    report = fork("unshared", tmp_path)
    assert [rank.rank for rank in report.ranks] == [0]
    (note,) = [note for note in report.notes if "does not share" in note]
    assert note.startswith("Rank 1 wrote to ")
    together = tmp_path / "together"
    together.mkdir()
    for file in (*trace_files(tmp_path), *tmp_path.rglob("*.jsonl")):
        shutil.copy(file, together)
    merged = analyze(together)
    assert [(rank.rank, len(rank.breakdown.steps)) for rank in merged.ranks] == [(0, 4), (1, 4)]
    assert merged.distributed is not None
    assert merged.distributed.missing_ranks == ()


@pytest.mark.slow
def test_a_rank_that_dies_leaves_the_others_their_error(tmp_path: Path) -> None:
    done = launch(PACKAGES[0], "ddp", tmp_path, "die")
    assert done.returncode != 0
    assert "rank 0 caught the error" in done.stdout, "the launcher killed it while it waited for the rank that is gone"
    assert "run: lightning-perf analyze " in done.stdout
    assert not list(tmp_path.rglob(".rank*")), "markers are left behind"
    (record,) = find_records(tmp_path)
    assert record.outcome is not Outcome.FINISHED
    (folder,) = {file.parent for file in tmp_path.rglob("steps.rank0.jsonl")}
    report = analyze(folder)  # with what there is: rank 0 was recording step 3 when rank 1 died
    assert [rank.rank for rank in report.ranks] == [0]
    assert any("1 rank left no trace: 1." in note for note in report.notes)


@pytest.mark.slow
@pytest.mark.parametrize(("where", "phase", "ranks"), [("data", "input", 2), ("forward", "compute", 3)])
def test_a_rank_that_is_late_in_every_step(tmp_path: Path, where: str, phase: str, ranks: int) -> None:
    straggler, report = late(tmp_path, where, ranks)
    assert (straggler.rank, straggler.phase) == (ranks - 1, phase)
    (finding,) = (each for each in report.findings if each.kind == "straggler")
    assert finding.title.startswith(f"Straggler: rank {ranks - 1} is late in ")


@pytest.mark.slow
def test_a_late_callback_and_its_name(tmp_path: Path) -> None:
    straggler, _ = late(tmp_path, "callback", 2)
    assert (straggler.rank, straggler.phase, straggler.place) == (1, "other", "LateCallback.on_train_batch_end")
    assert 27e6 < straggler.place_ns < 36e6
    for rank in (0, 1):
        for row in samples(tmp_path, rank)[1:]:
            assert row["data_wait_ns"] + row["compute_ns"] + row["wait_ns"] <= row["step_ns"]


@pytest.mark.slow
def test_ranks_that_take_turns_to_be_late(tmp_path: Path) -> None:
    found = fork("late-changing", tmp_path).over_fit
    assert found is not None
    assert found.straggler is None
    assert sum(row.late_share for row in found.ranks) > 0.9
    assert 13e6 < found.wait_ns < 20e6, "half of 30 ms: the longest minus the mean of two ranks"


def late(folder: Path, where: str, ranks: int) -> tuple[LateRank, PerfReport]:
    report = fork(f"late-{where}", folder, ranks)
    assert report.over_fit is not None
    assert report.over_fit.whole_work
    straggler = report.over_fit.straggler
    assert straggler is not None
    assert straggler.since is None
    assert straggler.share > 0.9
    # The sleep takes 30 ms or a little more, and a step of a busy machine hides a part of it.
    assert 27e6 < straggler.late_ns < 36e6
    return straggler, report


@pytest.mark.slow
def test_four_ranks_and_the_one_that_they_wait_for(tmp_path: Path) -> None:
    """The last rank sleeps 100 ms in each forward; the others wait that long for it."""
    compared = fork("straggler", tmp_path, 4).distributed
    assert compared is not None
    assert [rank.rank for rank in compared.ranks] == [0, 1, 2, 3]
    assert compared.straggler is not None
    assert compared.straggler.rank == 3
    waits_ms = [rank.wait_ns / 1e6 for rank in compared.ranks[:3] if rank.wait_ns is not None]
    assert len(waits_ms) == 3
    assert all(50 < wait_ms < 400 for wait_ms in waits_ms)

    first, *_, last = map(read_account, account_paths(next(tmp_path.rglob("account.rank0.jsonl")).parent))
    assert (first.rank, last.rank) == (0, 3)
    assert first.end == last.end == "returned"
    assert first.batches == last.batches == len(samples(tmp_path, 0))
    delay_ns = (last.batches - 1) * 100_000_000  # without the first step, whose forward loads code
    assert (
        first.entry("training steps", "forward").time_ns < delay_ns <= last.entry("training steps", "forward").time_ns
    )
