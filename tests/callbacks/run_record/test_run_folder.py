"""The folder of a fit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.run_record.run_folder import RankFiles, claim_run_folder


def trainer(log_dir: object, *, rank: int = 0, broadcast: object = None) -> SimpleNamespace:
    return SimpleNamespace(
        log_dir=log_dir,
        default_root_dir="/nowhere",
        is_global_zero=rank == 0,
        global_rank=rank,
        strategy=SimpleNamespace(broadcast=lambda value: value if rank == 0 else broadcast),
    )


def test_other_ranks_take_the_folder_of_rank_0(tmp_path: Path) -> None:
    folder = claim_run_folder(trainer(str(tmp_path)), None, ErrorReporter())
    assert folder == tmp_path / "perf"
    (folder / "x").touch()
    assert claim_run_folder(trainer(str(tmp_path), rank=1, broadcast=str(folder)), None, ErrorReporter()) == folder


@pytest.mark.parametrize("log_dir", ["s3://bucket/logs", "/proc/nothing/here"])
def test_no_folder_is_one_warning_that_says_what_to_do(log_dir: str) -> None:
    with pytest.warns(RuntimeWarning, match="dirpath"):
        assert claim_run_folder(trainer(log_dir), None, ErrorReporter()) is None


def test_a_given_folder_is_taken(tmp_path: Path) -> None:
    assert claim_run_folder(trainer("s3://bucket"), os.fspath(tmp_path / "mine"), ErrorReporter()) == tmp_path / "mine"


def test_a_logger_without_a_folder(tmp_path: Path) -> None:
    class Odd(SimpleNamespace):
        @property
        def log_dir(self) -> str:
            raise AttributeError("save_dir")

    settings = {**vars(trainer(None)), "default_root_dir": str(tmp_path)}
    odd = Odd(**{name: value for name, value in settings.items() if name != "log_dir"})
    with pytest.warns(RuntimeWarning, match="the logger has no folder"):
        assert claim_run_folder(odd, None, ErrorReporter()) == tmp_path / "perf"


def files(folder: Path | None, rank: int, world_size: int = 3) -> RankFiles:
    return RankFiles(folder, rank=rank, world_size=world_size, errors=ErrorReporter())


class Clock:
    """Every sleep passes time, and may let something happen."""

    def __init__(self, then: Any = None) -> None:
        self.now_s, self.then = 0.0, then

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.then is not None and self.now_s > 1:
            self.then()
            self.then = None


def wait(files: RankFiles, clock: Clock, timeout_s: float = 10) -> list[str]:
    return files.wait(timeout_s, now_s=lambda: clock.now_s, sleep=clock.sleep)


def test_all_are_waited_for_and_the_markers_removed(tmp_path: Path) -> None:
    ranks = [files(tmp_path, rank) for rank in range(3)]
    for rank in ranks[:2]:
        rank.ends()
        rank.ends()
    clock = Clock(then=ranks[2].ends)
    assert wait(ranks[0], clock) == []
    assert 1 < clock.now_s < 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dead", [False, True])
def test_the_wait_is_bounded_and_a_dead_process_is_not_waited_for(tmp_path: Path, dead: bool) -> None:
    ranks = [files(tmp_path, rank) for rank in range(3)]
    ranks[1].ends()
    if dead:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        (tmp_path / ".rank2.running").write_text(f"{gone.pid} {socket.gethostname()}")
    clock = Clock()
    assert wait(ranks[0], clock) == ["Rank 2 died or did not end: some recordings may be missing."]
    assert clock.now_s == pytest.approx(0 if dead else 10, abs=0.1)


def test_a_process_on_another_machine_cannot_be_seen_to_be_dead(tmp_path: Path) -> None:
    ranks = [files(tmp_path, rank, 2) for rank in range(2)]
    (tmp_path / ".rank1.running").write_text(f"{os.getpid()} elsewhere")
    clock = Clock(then=ranks[1].ends)
    assert wait(ranks[0], clock) == []


def test_ranks_that_never_showed_have_another_disk(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    here, _, there = files(tmp_path / "a", 0), files(tmp_path / "a", 1).ends(), files(tmp_path / "b", 2)
    there.ends()
    clock = Clock()
    (note,) = wait(here, clock)
    assert clock.now_s == 0
    assert f"Rank 2 wrote to {tmp_path / 'a'} on another" in note
    assert "lightning-perf analyze" in note


def test_one_rank_or_no_folder_leaves_no_marker(tmp_path: Path) -> None:
    assert wait(files(tmp_path, 0, 1), Clock()) == []
    assert wait(files(None, 0), Clock()) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:PerfCallback.*other ranks:RuntimeWarning")
def test_a_folder_that_is_gone_is_a_fault(tmp_path: Path) -> None:
    errors = ErrorReporter()
    each = RankFiles(tmp_path / "gone", rank=1, world_size=2, errors=errors)
    each.ends()
    assert len(errors.messages) == 1
