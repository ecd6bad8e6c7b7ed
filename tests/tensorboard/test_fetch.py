from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightning_perf.tensorboard.fetch import fetch
from lightning_perf.tensorboard.storage import StorageError
from lightning_perf.tensorboard.task import SourceFile, Task

fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install fsspec")


@pytest.fixture
def memory() -> Iterator[Any]:
    file_system = fsspec.filesystem("memory")
    file_system.pipe("/bucket/fit/rank0.1.pt.trace.json", b"x" * 100)
    file_system.pipe("/bucket/fit/rank1.1.pt.trace.json", b"y" * 300)
    yield file_system
    file_system.rm("/bucket", recursive=True)


def task(folder: Path, *versions: str) -> Task:
    files = tuple(
        SourceFile(f"fit/rank{rank}.1.pt.trace.json", (100, 300)[rank], version, None)
        for rank, version in enumerate(versions)
    )
    return Task("report", "k", "memory://bucket", "memory://bucket", "fit", files, 2, (), str(folder))


def test_copies_files_once_and_tells_how_far_it_is(memory: Any, tmp_path: Path) -> None:
    told: list[tuple[float, str]] = []
    paths = fetch(task(tmp_path, "v1", "v1"), lambda *step: told.append(step))
    assert [path.name for path in paths] == ["rank0.1.pt.trace.json", "rank1.1.pt.trace.json"]
    assert [path.read_bytes() for path in paths] == [b"x" * 100, b"y" * 300]
    assert [done for done, _ in told] == [0.25, 1.0]
    assert told[1][1] == "fetching file 2 of 2, 0 MB in total"
    told.clear()
    assert fetch(task(tmp_path, "v1", "v1"), lambda *step: told.append(step)) == paths
    assert told == []


def test_a_new_version_is_fetched_anew(memory: Any, tmp_path: Path) -> None:
    old = fetch(task(tmp_path, "v1"), lambda *_: None)
    memory.pipe("/bucket/fit/rank0.1.pt.trace.json", b"z" * 100)
    (new,) = fetch(task(tmp_path, "v2"), lambda *_: None)
    assert [new] != old
    assert new.read_bytes() == b"z" * 100


def test_a_file_that_changes_meanwhile_leaves_nothing(memory: Any, tmp_path: Path) -> None:
    memory.pipe("/bucket/fit/rank0.1.pt.trace.json", b"longer" * 100)
    with pytest.raises(StorageError, match="changed while it was fetched"):
        fetch(task(tmp_path, "v1"), lambda *_: None)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_file_that_is_gone_is_said(memory: Any, tmp_path: Path) -> None:
    memory.rm("/bucket/fit/rank0.1.pt.trace.json")
    with pytest.raises(StorageError, match="cannot be read from memory://bucket"):
        fetch(task(tmp_path, "v1"), lambda *_: None)


def test_old_files_make_room(memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_perf.tensorboard.fetch.MOST_FETCHED_BYTES", 250)
    for version in ("v1", "v2", "v3", "v4"):
        fetch(task(tmp_path, version), lambda *_: None)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2


def test_a_run_that_does_not_fit_is_refused(memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_perf.tensorboard.fetch.MOST_FETCHED_BYTES", 250)
    with pytest.raises(StorageError, match=r"room for .* Free some space, set LIGHTNING_PERF_CACHE to another folder"):
        fetch(task(tmp_path, "v1", "v1"), lambda *_: None)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_local_files_stay_where_they_are(tmp_path: Path) -> None:
    local = msgspec.structs.replace(
        task(tmp_path), url=None, files=(SourceFile("fit/a.json", 1, "v", "/logs/fit/a.json"),)
    )
    assert fetch(local, lambda *_: None) == [Path("/logs/fit/a.json")]
