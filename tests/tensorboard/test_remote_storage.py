from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest

from lightning_perf.tensorboard.storage import RemoteStorage, StorageError

fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install fsspec")


@pytest.fixture
def memory() -> Iterator[Any]:
    file_system = fsspec.filesystem("memory")
    file_system.pipe("/bucket/logs/fit/a.pt.trace.json", b"{}")
    file_system.pipe("/bucket/logs/fit/weights.ckpt", b"")
    file_system.pipe("/bucket/logs_other/b.json", b"")
    yield file_system
    file_system.rm("/bucket", recursive=True)


def test_lists_json_files_below_the_root(memory: Any) -> None:
    listing = RemoteStorage("memory://bucket/logs/").list_files()
    (file,) = listing.files
    assert (file.path, file.size_bytes) == ("fit/a.pt.trace.json", 2)
    assert abs(file.updated_s - datetime.now(timezone.utc).timestamp()) < 3600


def test_sees_new_files_in_a_second_listing(memory: Any) -> None:
    storage = RemoteStorage("memory://bucket/logs")
    storage.list_files()
    memory.pipe("/bucket/logs/fit/c.json", b"{}")
    assert len(storage.list_files().files) == 2


def test_opens_what_it_listed(memory: Any) -> None:
    with RemoteStorage("memory://bucket/logs").open("fit/a.pt.trace.json") as stream:
        assert stream.read() == b"{}"
    with pytest.raises(StorageError, match=r"x\.json cannot be read from memory://bucket/logs"):
        RemoteStorage("memory://bucket/logs").open("x.json")


def test_an_empty_place_is_an_empty_listing(memory: Any) -> None:
    assert RemoteStorage("memory://bucket/nothing").list_files().files == ()


class Hostile:
    """A file system with names that no real one would hold."""

    def invalidate_cache(self) -> None:
        """Nothing is kept."""

    def find(self, root: str, detail: bool) -> dict[str, dict[str, Any]]:
        names = ["../x.json", "a/../../x.json", "a//x.json", "/etc/x.json", "a\\x.json", "good/x.json", "folder.json"]
        return {f"{root}/{name}": {"size": 1, "type": "directory" if "folder" in name else "file"} for name in names}


def test_names_that_lead_elsewhere_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = RemoteStorage("memory://bucket")
    monkeypatch.setattr(storage, "_connect", lambda: (Hostile(), "/bucket"))
    assert [file.path for file in storage.list_files().files] == ["good/x.json"]


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
    monkeypatch: pytest.MonkeyPatch, details: dict[str, Any], version: str, updated_s: float
) -> None:
    class One(Hostile):
        def find(self, root: str, detail: bool) -> dict[str, dict[str, Any]]:
            return {f"{root}/x.json": {"size": 1, **details}}

    storage = RemoteStorage("memory://bucket")
    monkeypatch.setattr(storage, "_connect", lambda: (One(), "/bucket"))
    (file,) = storage.list_files().files
    assert (file.version, file.updated_s) == (version, updated_s)


def test_a_missing_file_system_is_named_without_the_credentials() -> None:
    with pytest.raises(StorageError, match=r"nosuch://host/x cannot be reached \(ValueError: Protocol not known"):
        RemoteStorage("nosuch://me:secret@host/x").list_files()


def test_a_refusal_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Hostile):
        def find(self, root: str, detail: bool) -> dict[str, dict[str, Any]]:
            raise PermissionError("Access Denied to ftp://me:secret@host")

    storage = RemoteStorage("memory://bucket")
    monkeypatch.setattr(storage, "_connect", lambda: (Refusing(), "/bucket"))
    with pytest.raises(StorageError, match=r"cannot be listed \(PermissionError: Access Denied to ftp://host\)"):
        storage.list_files()
