from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.tensorboard.discovery import Run
from lightning_perf.tensorboard.documents import fetch
from lightning_perf.tensorboard.storage import Storage, StorageError
from tests.tensorboard.support import stored

fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install fsspec")


@pytest.fixture
def memory() -> Iterator[Any]:
    file_system = fsspec.filesystem("memory")
    file_system.pipe("/bucket/fit/rank0.1.pt.trace.json", b"x" * 100)
    file_system.pipe("/bucket/fit/rank1.1.pt.trace.json", b"y" * 300)
    yield file_system
    file_system.rm("/bucket", recursive=True)


def run(*versions: str) -> Run:
    files = tuple(
        stored(f"fit/rank{rank}.1.pt.trace.json", (100, 300)[rank], version=version)
        for rank, version in enumerate(versions)
    )
    return Run("fit", "trace", Storage("memory://bucket"), "fit", files, ())


def quiet(done: float, message: str) -> None:
    """Hear of the progress."""


def test_copies_files_once_and_tells_how_far_it_is(memory: Any, tmp_path: Path) -> None:
    told: list[tuple[float, str]] = []
    paths = fetch(run("v1", "v1"), tmp_path, lambda *step: told.append(step))
    assert [path.name for path in paths] == ["rank0.1.pt.trace.json", "rank1.1.pt.trace.json"]
    assert [path.read_bytes() for path in paths] == [b"x" * 100, b"y" * 300]
    assert [done for done, _ in told] == [0.25, 1.0]
    assert told[1][1] == "fetching file 2 of 2, 0 MB in total"
    told.clear()
    assert fetch(run("v1", "v1"), tmp_path, lambda *step: told.append(step)) == paths
    assert told == []


def test_a_new_version_is_fetched_anew(memory: Any, tmp_path: Path) -> None:
    old = fetch(run("v1"), tmp_path, quiet)
    memory.pipe("/bucket/fit/rank0.1.pt.trace.json", b"z" * 100)
    (new,) = fetch(run("v2"), tmp_path, quiet)
    assert [new] != old
    assert new.read_bytes() == b"z" * 100


def test_a_file_that_changes_meanwhile_leaves_nothing(memory: Any, tmp_path: Path) -> None:
    memory.pipe("/bucket/fit/rank0.1.pt.trace.json", b"longer" * 100)
    with pytest.raises(StorageError, match="changed while it was fetched"):
        fetch(run("v1"), tmp_path, quiet)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_file_that_is_gone_is_said(memory: Any, tmp_path: Path) -> None:
    memory.rm("/bucket/fit/rank0.1.pt.trace.json")
    with pytest.raises(StorageError, match="cannot be read from memory://bucket"):
        fetch(run("v1"), tmp_path, quiet)


def test_old_files_make_room(memory: Any, tmp_path: Path) -> None:
    for version in ("v1", "v2", "v3", "v4"):
        fetch(run(version), tmp_path, quiet, most_bytes=250)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2


def test_a_run_that_does_not_fit_is_refused(memory: Any, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"room for .* Free some space, set LIGHTNING_PERF_CACHE to another folder"):
        fetch(run("v1", "v1"), tmp_path, quiet, most_bytes=250)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_local_files_stay_where_they_are(logdir: Path, tmp_path: Path) -> None:
    local = Run("fit", "run", Storage(str(logdir)), "fit", (stored("fit/a.json"),), ())
    assert fetch(local, tmp_path, quiet) == [logdir / "fit" / "a.json"]
