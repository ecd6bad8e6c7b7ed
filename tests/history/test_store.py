import json
import threading
import zipfile

import msgspec
import pytest

from lightning_perf.history.store import (
    HISTORY_NAME,
    VERSION,
    HistoryError,
    StoredRun,
    add_runs,
    open_store,
    read_store,
)
from tests.history.support import write_commit

fsspec = pytest.importorskip("fsspec")


def entry(name, **changes):
    values = {"step_time": 100.0}
    return msgspec.structs.replace(
        StoredRun(run_id=name, started_unix_s=1.0, added_unix_s=2.0, commit="c1", facts={}, values=values), **changes
    )


def names(store):
    return [run.run_id for run in read_store(open_store(store)).runs]


@pytest.fixture
def remote():
    yield "memory://bucket/history"
    fsspec.filesystem("memory").rm("/bucket", recursive=True)


def test_a_folder_is_appended_to(tmp_path):
    store = open_store(tmp_path / "new" / "store")
    assert not store.exists()
    store.append([entry("b", started_unix_s=2.0)])
    before = (tmp_path / "new" / "store" / HISTORY_NAME).read_bytes()
    store.append([entry("a")])
    assert (tmp_path / "new" / "store" / HISTORY_NAME).read_bytes().startswith(before)
    assert names(tmp_path / "new" / "store") == ["a", "b"]


def test_a_run_counts_once(tmp_path):
    store = open_store(tmp_path)
    store.append([entry("a"), entry("a", commit="c2")])
    (run,) = read_store(store).runs
    assert run.commit == "c1"


def test_damaged_and_newer_lines_are_reported(tmp_path):
    store = open_store(tmp_path)
    store.append([entry("a")])
    with (tmp_path / HISTORY_NAME).open("ab") as file:
        file.write(b'{"type":"run","run_id":"b","val')  # a killed writer
    store.append([entry("c")])
    with (tmp_path / HISTORY_NAME).open("ab") as file:
        file.write(json.dumps({"type": "something", "version": VERSION + 1}).encode() + b"\n\xff\xfe\n")
    contents = read_store(store)
    assert [run.run_id for run in contents.runs] == ["a", "c"]
    damaged, newer = contents.notes
    assert damaged == "Skipped 2 entries that cannot be read: history.jsonl, line 3, history.jsonl, line 6."
    assert newer.startswith("Skipped 1 entry that a newer lightning-perf wrote: history.jsonl, line 5. Upgrade")


def test_impossible_dates_are_damage(tmp_path):
    open_store(tmp_path).append([entry("a"), entry("b", started_unix_s=1e300)])
    contents = read_store(open_store(tmp_path))
    assert [run.run_id for run in contents.runs] == ["a"]
    assert "Skipped 1 entry that cannot be read" in contents.notes[0]


def test_writers_at_the_same_time(tmp_path, remote):
    for place in (str(tmp_path / "store"), remote):
        writers = [
            threading.Thread(target=open_store(place).append, args=([entry(f"{w}-{n}") for n in range(20)],))
            for w in range(5)
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        contents = read_store(open_store(place))
        assert len(contents.runs) == 100
        assert contents.notes == ()


def test_a_remote_store_has_an_object_per_entry(remote, tmp_path):
    write_commit(tmp_path / "runs", 1, 100.0)
    assert add_runs(remote, [tmp_path / "runs"], repository=tmp_path).added == 2
    assert add_runs(remote, [tmp_path / "runs"], repository=tmp_path).known == 2
    objects = fsspec.filesystem("memory").find("/bucket/history/entries")
    assert len(objects) == 2
    # Names from a hostile record cannot lead out of the store.
    open_store(remote).append([entry("../../../outside")])
    assert len(fsspec.filesystem("memory").find("/bucket/history/entries")) == 3
    assert len(names(remote)) == 3


def test_a_copy_of_a_remote_store(remote, tmp_path):
    open_store(remote).append([entry("a"), entry("b")])
    memory = fsspec.filesystem("memory")
    (tmp_path / "entries").mkdir()
    for path in memory.find("/bucket/history/entries"):
        (tmp_path / "entries" / path.rpartition("/")[2]).write_bytes(memory.cat(path))
    open_store(tmp_path).append([entry("c")])
    assert sorted(names(tmp_path)) == ["a", "b", "c"]
    (tmp_path / "entries" / "x.json").write_text("{")
    assert "entries/x.json" in read_store(open_store(tmp_path)).notes[0]


def test_runs_from_an_artifact(tmp_path):
    write_commit(tmp_path / "runs", 1, 100.0)
    with zipfile.ZipFile(tmp_path / "runs.zip", "w") as archive:
        for path in sorted((tmp_path / "runs").rglob("*.jsonl")):
            archive.write(path, path.relative_to(tmp_path).as_posix())
        archive.writestr("../../outside.jsonl", "{}")
    assert add_runs(tmp_path / "store", [tmp_path / "runs.zip"], repository=tmp_path).added == 2
    assert not (tmp_path.parent.parent / "outside.jsonl").exists()
    (tmp_path / "cut.zip").write_bytes((tmp_path / "runs.zip").read_bytes()[:200])
    with pytest.raises(HistoryError, match=r"cut.zip: cannot be read as a ZIP archive .* Download it again"):
        add_runs(tmp_path / "store", [tmp_path / "cut.zip"])


@pytest.mark.parametrize("place", ["missing", "memory://nothing/here"])
def test_no_history(tmp_path, place):
    place = place if "://" in place else str(tmp_path / place)
    with pytest.raises(HistoryError, match=r"no history there. Add runs with: lightning-perf history add RUN --store"):
        names(place)


def test_places_that_are_none(tmp_path):
    with pytest.raises(HistoryError, match=r"not a ZIP archive. Unpack it, and give the folder: unzip a.zip -d a$"):
        open_store("a.zip")
    with pytest.raises(HistoryError, match="nosuch://x: cannot be opened"):
        open_store("nosuch://x")
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match="Give another folder with --store"):
        open_store(tmp_path / "file").append([entry("a")])
