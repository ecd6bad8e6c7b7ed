"""The folder of a run and the markers in it."""

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from lightning_perf.run_files.run_folder import (
    FOLDER_MARKER,
    RankMarkers,
    make_run_folder,
    read_capture_start,
    take_capture_request,
    write_capture_start,
)


def test_each_fit_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "perf"
    path.mkdir(parents=True)
    assert [make_run_folder(str(path)).name for _ in range(3)] == ["perf", "perf_1", "perf_2"], (
        "an empty folder is free"
    )
    (tmp_path / "logs" / "perf_3").mkdir()
    (tmp_path / "logs" / "perf_3" / "notes.txt").touch()
    assert make_run_folder(str(path)).name == "perf_4"


def test_processes_that_start_at_once_get_different_folders(tmp_path: Path) -> None:
    path = tmp_path / "perf"
    path.mkdir()
    begin = Barrier(8)

    def claim(_: int) -> Path:
        begin.wait()
        return make_run_folder(str(path))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(claim, range(8)))) == 8


def test_a_file_of_that_name_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "perf").touch()
    assert make_run_folder(str(tmp_path / "perf")).name == "perf_1"


def test_a_relative_path_stays_where_it_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_run_folder("perf") == tmp_path / "perf"


def test_a_new_folder_holds_only_the_marker(tmp_path: Path) -> None:
    folder = make_run_folder(str(tmp_path / "perf"))
    assert [path.name for path in folder.iterdir()] == [FOLDER_MARKER] == [".lightning_perf"]


def test_a_remote_folder_is_refused() -> None:
    with pytest.raises(ValueError, match="s3://bucket is not on this machine"):
        make_run_folder("s3://bucket")


def test_a_rank_begins_and_ends(tmp_path: Path) -> None:
    markers = RankMarkers(tmp_path)
    assert not markers.has_begun(3)
    markers.begin(3)
    assert (tmp_path / ".rank3.running").read_text() == f"{os.getpid()} {socket.gethostname()}"
    assert (markers.has_begun(3), markers.has_ended(3), markers.is_dead(3)) == (True, False, False)
    markers.end(3)
    assert [path.name for path in tmp_path.iterdir()] == [".rank3.done"]
    assert (markers.has_begun(3), markers.has_ended(3), markers.is_dead(3)) == (True, True, False)
    markers.remove(3)
    markers.remove(4)
    assert not markers.has_begun(3)


def test_only_a_process_of_this_machine_is_seen_to_be_dead(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    markers = RankMarkers(tmp_path)
    for rank, content in enumerate((f"{gone.pid} {socket.gethostname()}", f"{gone.pid} elsewhere", "rubbish")):
        (tmp_path / f".rank{rank}.running").write_text(content)
    assert [markers.is_dead(rank) for rank in range(4)] == [True, False, False, False]


def test_a_capture_is_asked_for_and_its_start_told(tmp_path: Path) -> None:
    assert not take_capture_request(tmp_path)
    (tmp_path / "profile-now").touch()
    assert take_capture_request(tmp_path)
    assert not take_capture_request(tmp_path)
    assert read_capture_start(tmp_path) is None
    write_capture_start(tmp_path, 17)
    assert (tmp_path / ".profile-at").read_bytes() == b"17"
    assert read_capture_start(tmp_path) == 17
    (tmp_path / ".profile-at").write_text("no number")
    assert read_capture_start(tmp_path) is None
