import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from lightning_perf.documents import page_json
from lightning_perf.report.build import analyze
from lightning_perf.run_files.run_folder import make_run_folder
from lightning_perf.run_files.user_cache import cache_root
from lightning_perf.tensorboard.cache import BESIDE, find, key_of, places_of, write
from lightning_perf.tensorboard.discovery import Run
from lightning_perf.tensorboard.queue import Queue
from lightning_perf.tensorboard.storage import Storage
from tests.support.processes import until
from tests.tensorboard.support import Asker, InlineQueue, asker, run_of, stored, write_study, write_trace

NOW_S = 1000.0


def run(logdir: Path, *others: object) -> Run:
    return Run("fit", "run", Storage(str(logdir)), "fit", (stored("fit/a.pt.trace.json"),), tuple(others))  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"size_bytes": 11}, {"version": "v2"}, {"path": "fit/b.pt.trace.json"}])
def test_a_key_changes_with_a_trace(logdir: Path, change: dict[str, object]) -> None:
    before = run(logdir)
    trace = {"path": "fit/a.pt.trace.json", **change}
    assert key_of(replace(before, traces=(stored(**trace),))) != key_of(before)  # type: ignore[arg-type]


def test_a_key_changes_with_a_new_window_the_tool_and_the_schema(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run(logdir)
    keys = {key_of(before), key_of(replace(before, traces=(*before.traces, stored("fit/c.pt.trace.json"))))}
    for name, value in (("__version__", "9.9"), ("SCHEMA_VERSION", 99)):
        with monkeypatch.context() as patch:
            patch.setattr(f"lightning_perf.tensorboard.cache.{name}", value)
            keys.add(key_of(before))
    assert len(keys) == 4


def test_a_key_does_not_depend_on_where_the_run_lies(logdir: Path) -> None:
    there = Run("x/y", "run", Storage("/elsewhere"), "x/y", (stored("x/y/a.pt.trace.json"),), ())
    assert key_of(there) == key_of(run(logdir))


def test_a_log_being_written_changes_the_key_by_a_quarter_not_by_a_step(logdir: Path) -> None:
    def key(size_bytes: int, age_s: float, *others: object) -> str:
        log = stored("fit/steps.rank0.jsonl", size_bytes, NOW_S - age_s, version=str(size_bytes))
        return key_of(run(logdir, log, *others), NOW_S)

    assert key(100_000, 1) == key(100_100, 1)
    assert key(100_000, 1) != key(130_000, 1)
    assert key(100_000, 400) != key(100_100, 400)  # nobody writes it any more: every step counts
    report = stored("fit/report.json")
    assert key(100_000, 1, report) != key(100_100, 1, report)  # the fit is over


def test_documents_lie_beside_the_data(logdir: Path) -> None:
    make_run_folder(str(logdir / "fit"))
    fit = run(logdir)
    place = write(places_of(fit), "k", {"report": b"whole", "page": b"part"})
    assert place == logdir / "fit" / BESIDE
    assert sorted(path.name for path in place.iterdir()) == ["k.page", "k.report"]
    found = find(fit, "k", "page")
    assert found is not None
    assert found.read_bytes() == b"part"
    assert find(fit, "other", "page") is None


def test_new_documents_replace_those_of_older_files(logdir: Path) -> None:
    (logdir / "fit").mkdir()
    places = places_of(run(logdir))
    write(places, "old", {"report": b"", "page": b""})
    write(places, "study", {"study": b""})
    place = write(places, "new", {"report": b"", "page": b""})
    assert sorted(path.name for path in place.iterdir()) == ["new.page", "new.report", "study.study"]


def test_a_folder_made_read_only_is_left_alone_even_by_root(logdir: Path, user_cache: Path) -> None:
    folder = logdir / "fit"
    folder.mkdir()
    folder.chmod(0o555)
    fit = run(logdir)
    try:
        place = write(places_of(fit), "k", {"report": b"x"})
    finally:
        folder.chmod(0o755)
    assert not list(folder.iterdir())
    assert user_cache in place.parents
    found = find(fit, "k", "report")
    assert found is not None
    assert found.parent == place


def test_a_link_in_place_of_the_cache_or_a_document_is_neither_written_nor_read(logdir: Path, tmp_path: Path) -> None:
    (logdir / "fit").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "k.page").write_text("secret")
    (logdir / "fit" / BESIDE).symlink_to(tmp_path / "home")
    fit = run(logdir)
    assert find(fit, "k", "page") is None
    write(places_of(fit), "k", {"report": b"x"})
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["k.page"]
    (logdir / "fit" / BESIDE).unlink()
    (logdir / "fit" / BESIDE).mkdir()
    (logdir / "fit" / BESIDE / "k.page").symlink_to(tmp_path / "home" / "k.page")
    assert find(fit, "k", "page") is None


def test_a_folder_that_another_user_made_is_neither_read_nor_written(
    logdir: Path, user_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Run("fit", "trace", Storage("memory://bucket"), "fit", (), ())
    planted = places_of(far)[0]
    planted.mkdir(parents=True)
    (planted / "k.page").write_text("forged")
    monkeypatch.setattr(os, "getuid", lambda: planted.stat().st_uid + 1)
    assert find(far, "k", "page") is None
    with pytest.raises(OSError, match="no folder can be written"):
        write([planted], "k", {"page": b"x"})


def test_where_nothing_can_be_written_the_fault_is_raised(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        write([tmp_path / "file" / "x"], "k", {"report": b"x"})


def test_documents_in_the_user_s_cache_are_bounded(user_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_perf.tensorboard.cache.MOST_DOCUMENT_BYTES", 250)
    made = []
    for number in range(4):
        far = Run(str(number), "trace", Storage("memory://bucket"), str(number), (), ())
        place = write(places_of(far), "k", {"report": b"x" * 100})
        os.utime(place / "k.report", (number, number))
        made.append(place)
    assert {path.parent for path in user_cache.rglob("k.report")} == set(made[2:])  # those used last
    assert len(list((user_cache / "documents").iterdir())) == 2


def test_the_user_s_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_PERF_CACHE", "/named")
    assert cache_root() == Path("/named")
    monkeypatch.delenv("LIGHTNING_PERF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/lightning_perf")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the specification says to ignore it
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_root() == Path("/home/someone/.cache/lightning_perf")


DAMAGED = [b"", b'{"schema_version": 1, "ranks": [', b"\0" * 100, b"{}", b"null", b"\xff"]


def cached(folder: Path, document: str) -> Path:
    (path,) = (folder / BESIDE).glob(f"*.{document}")
    return path


def makes(tab: Asker) -> int:
    assert isinstance(tab.queue, InlineQueue)
    return len(tab.queue.asked)


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_page_is_made_again(logdir: Path, damage: bytes) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    tab = asker(logdir)
    report = tab.json("data/report", run="fit")
    cached(logdir / "fit", "page").write_bytes(damage)
    assert tab.json("data/report", run="fit") == report == json.loads(page_json(analyze(logdir / "fit")))
    assert tab.json("data/report", run="fit") == report
    assert makes(tab) == 2


def test_a_damaged_comparison_is_made_again(logdir: Path) -> None:
    pytest.importorskip("scipy", reason="needs scipy: pip install scipy")
    write_study(logdir / "amp")
    run = run_of(logdir, "amp")
    write(places_of(run), key_of(run), {"study": b'{"baseline"'})
    assert asker(logdir).json("data/study", run="amp")["baseline"] == "fp32"


def test_a_page_damaged_right_after_it_was_made_is_made_again(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    tab = asker(logdir, Queue())
    until(lambda: tab.get("data/report", run="fit").status_code == 200)
    cached(logdir / "fit", "page").write_bytes(b"{")
    assert tab.get("data/report", run="fit").status_code == 202
    until(lambda: tab.get("data/report", run="fit").status_code == 200)
