from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from lightning_perf.tensorboard.discovery import read_roots, roots_of


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("/logs/a", [("", "/logs/a")]),
        ("a:/logs/a,b:/logs/b", [("a", "/logs/a"), ("b", "/logs/b")]),
        ("/logs/a:b", [("", "/logs/a:b")]),
        ("s3://bucket/logs", [("", "s3://bucket/logs")]),
        ("far:s3://bucket/logs,near:/logs", [("far", "s3://bucket/logs"), ("near", "/logs")]),
        ("simplecache::s3://bucket/logs", [("", "simplecache::s3://bucket/logs")]),
        ("a:/logs/x:y", [("a", "/logs/x:y")]),
        ("/logs/a,,", [("", "/logs/a")]),
        ("", []),
    ],
)
def test_reads_the_spec_as_tensorboard_does(spec: str, expected: list[tuple[str, str]]) -> None:
    assert [(root.group, root.storage.location) for root in read_roots("", spec)] == expected


def test_agrees_with_tensorboard_s_own_reading() -> None:
    ingester = pytest.importorskip("tensorboard.backend.event_processing.data_ingester")
    spec = "a:/logs/a,/logs/b,b:/logs/c:d,gs://x/y,c:gs://x/z"
    theirs = ingester._parse_event_files_spec(spec)
    ours = {root.storage.location: root.group or None for root in read_roots(None, spec)}
    assert ours == theirs


def test_a_log_directory_may_be_relative_or_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert read_roots("runs", None)[0].storage.location == str(tmp_path / "runs")
    assert read_roots("~/runs", None)[0].storage.location == "/home/someone/runs"
    assert read_roots("file:///logs", None)[0].storage.location == "/logs"


def test_credentials_in_a_url_are_not_shown() -> None:
    assert read_roots("ftp://me:secret@host/logs", None)[0].storage.location == "ftp://host/logs"


def test_a_context_may_lack_its_flags() -> None:
    assert roots_of(SimpleNamespace(logdir=None, flags=None)) == ()
    flags = SimpleNamespace(logdir="", logdir_spec="a:/x")
    assert [root.group for root in roots_of(SimpleNamespace(logdir="", flags=flags))] == ["a"]
