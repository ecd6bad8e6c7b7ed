import os
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.tensorboard.storage import Storage, StorageError


def paths(folder: Path) -> list[str]:
    return [file.path for file in Storage(str(folder)).list_files()[0]]


def test_lists_json_files_with_size_and_time(logdir: Path) -> None:
    (logdir / "a").mkdir()
    (logdir / "a" / "x.json").write_text("{}")
    os.utime(logdir / "a" / "x.json", ns=(0, 1_500_000_000))
    for other in (".x.json", "a/weights.ckpt", ".git/x.json"):
        (logdir / other).parent.mkdir(exist_ok=True)
        (logdir / other).write_text("{}")
    (logdir / "y.jsonl").write_text("")
    first, second = Storage(str(logdir)).list_files()[0]
    assert (first.path, first.folder, first.name) == ("a/x.json", "a", "x.json")
    assert (first.size_bytes, first.updated_s, first.version) == (2, 1.5, "1500000000")
    assert (second.path, second.folder) == ("y.jsonl", "")


def test_a_folder_that_is_not_there_yet_is_a_note(logdir: Path) -> None:
    files, notes = Storage(str(logdir / "later")).list_files()
    assert files == []
    assert "does not exist yet" in notes[0]


def test_a_file_is_no_folder(logdir: Path) -> None:
    (logdir / "x.json").write_text("{}")
    with pytest.raises(StorageError, match=r"x\.json cannot be listed"):
        Storage(str(logdir / "x.json")).list_files()


def test_follows_links_to_files_inside_alone(logdir: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "s.json").write_text("{}")
    (logdir / "a").mkdir()
    (logdir / "a" / "x.json").write_text("{}")
    (logdir / "inside.json").symlink_to(logdir / "a" / "x.json")
    (logdir / "inside").symlink_to(logdir / "a")
    (logdir / "round").symlink_to(logdir)
    for link, target in (("broken", "nothing"), ("self", "self"), ("there", "back"), ("back", "there")):
        (logdir / f"{link}.json").symlink_to(f"{target}.json")
    (logdir / "out.json").symlink_to(tmp_path / "secret" / "s.json")
    (logdir / "out").symlink_to(tmp_path / "secret")
    files, notes = Storage(str(logdir)).list_files()
    assert [file.path for file in files] == ["a/x.json", "inside.json"]
    (note,) = notes
    assert "'out'" in note
    assert "'out.json'" in note
    assert "'inside'" not in note


def test_the_log_directory_itself_may_be_a_link(logdir: Path, tmp_path: Path) -> None:
    (logdir / "x.json").write_text("{}")
    (tmp_path / "link").symlink_to(logdir)
    storage = Storage(str(tmp_path / "link"))
    assert [file.path for file in storage.list_files()[0]] == ["x.json"]
    with storage.open("x.json") as stream:
        assert stream.read() == b"{}"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        *((path, "leads out") for path in ("../secret.json", "/etc/passwd", "a/../../secret.json", "out.json")),
        ("pipe.json", "is not a regular file"),
        ("gone.json", r"gone\.json cannot be read \(No such file"),
    ],
)
def test_opens_only_regular_files_below_the_root(logdir: Path, tmp_path: Path, path: str, reason: str) -> None:
    (tmp_path / "secret.json").write_text("{}")
    (logdir / "a").mkdir()
    (logdir / "out.json").symlink_to(tmp_path / "secret.json")
    os.mkfifo(logdir / "pipe.json")
    assert paths(logdir) == []
    with pytest.raises(StorageError, match=reason):
        Storage(str(logdir)).open(path)


def test_names_that_are_not_utf_8_are_left_out_with_a_note(logdir: Path) -> None:
    (logdir / "good.json").write_text("{}")
    Path(os.fsdecode(os.fsencode(logdir) + b"/bad\xff.json")).write_text("{}")
    files, notes = Storage(str(logdir)).list_files()
    assert [file.path for file in files] == ["good.json"]
    assert "not UTF-8" in notes[0]


def test_stops_where_nobody_could_look_any_further(logdir: Path) -> None:
    for number in range(4):
        (logdir / f"{number}.json").write_text("{}")
    files, notes = Storage(str(logdir)).list_files(most_files=2)
    assert len(files) == 2
    assert "more than 2 files" in notes[0]


fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install fsspec")


@pytest.fixture
def memory() -> Iterator[Any]:
    file_system = fsspec.filesystem("memory")
    file_system.pipe("/bucket/logs/fit/a.pt.trace.json", b"{}")
    file_system.pipe("/bucket/logs/fit/weights.ckpt", b"")
    file_system.pipe("/bucket/logs_other/b.json", b"")
    yield file_system
    file_system.rm("/bucket", recursive=True)


def test_lists_and_opens_the_files_below_a_url(memory: Any) -> None:
    storage = Storage("memory://bucket/logs/")
    (file,), _ = storage.list_files()
    assert (file.path, file.size_bytes) == ("fit/a.pt.trace.json", 2)
    assert abs(file.updated_s - datetime.now(timezone.utc).timestamp()) < 3600
    memory.pipe("/bucket/logs/fit/c.json", b"{}")
    assert len(storage.list_files()[0]) == 2
    assert Storage("memory://bucket/nothing").list_files()[0] == []
    with storage.open("fit/a.pt.trace.json") as stream:
        assert stream.read() == b"{}"
    with pytest.raises(StorageError, match=r"x\.json cannot be read from memory://bucket/logs"):
        storage.open("x.json")


class Fake:
    """A file system with the given files, or with an error."""

    def __init__(self, found: dict[str, dict[str, Any]] | Exception) -> None:
        self.found = found

    def invalidate_cache(self) -> None:
        """Nothing is kept."""

    def find(self, root: str, detail: bool) -> dict[str, dict[str, Any]]:
        if isinstance(self.found, Exception):
            raise self.found
        return {f"{root}/{name}": {"size": 1, **details} for name, details in self.found.items()}


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Storage]:
    """Return a storage on a fake file system."""

    def serve(found: Any) -> Storage:
        monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (Fake(found), "/bucket"))
        return Storage("memory://bucket")

    return serve


def test_names_that_lead_elsewhere_are_left_out(serve: Callable[[Any], Storage]) -> None:
    names = ["../x.json", "a/../../x.json", "a//x.json", "/etc/x.json", "a\\x.json", "good/x.json"]
    found = {**{name: {"type": "file"} for name in names}, "folder.json": {"type": "directory"}}
    assert [file.path for file in serve(found).list_files()[0]] == ["good/x.json"]


@pytest.mark.parametrize(
    ("details", "version", "updated_s"),
    [
        ({"ETag": '"e"', "LastModified": datetime(1970, 1, 1, 0, 1, tzinfo=timezone.utc)}, '"e"', 60.0),
        ({"etag": "g", "updated": "1970-01-01T00:01:00Z"}, "g", 60.0),
        ({"mtime": 60}, "60", 60.0),
        ({}, "0.0", 0.0),
        ({"updated": "yesterday"}, "yesterday", 0.0),
    ],
)
def test_versions_and_times_of_several_file_systems(
    serve: Callable[[Any], Storage], details: dict[str, Any], version: str, updated_s: float
) -> None:
    (file,), _ = serve({"x.json": details}).list_files()
    assert (file.version, file.updated_s) == (version, updated_s)


def test_errors_name_the_place_without_the_credentials(serve: Callable[[Any], Storage]) -> None:
    with pytest.raises(StorageError, match=r"nosuch://host/x cannot be reached \(ValueError: Protocol not known"):
        Storage("nosuch://me:secret@host/x").list_files()
    refusing = serve(PermissionError("Access Denied to ftp://me:secret@host"))
    with pytest.raises(StorageError, match=r"cannot be listed \(PermissionError: Access Denied to ftp://host\)"):
        refusing.list_files()
