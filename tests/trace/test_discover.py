from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightning_perf.trace.discover import find_traces
from lightning_perf.trace.errors import TraceError
from tests.support.trace_builder import TraceBuilder


def found(path: Path) -> list[tuple[str, int, int]]:
    return [(file.path.name, file.rank, file.window) for file in find_traces(path)]


def test_ranks_and_windows_in_order(tmp_path: Path) -> None:
    for name in (
        "rank1.1700000000000000000.pt.trace.json.gz",
        "rank0.1700000000900000000.pt.trace.json.gz",
        "rank0.1700000000100000000.pt.trace.json.gz",
        "rank10.1700000000000000000.pt.trace.json.gz",
    ):
        TraceBuilder().op("a", 0, 1).write(tmp_path / name)
    assert found(tmp_path) == [
        ("rank0.1700000000100000000.pt.trace.json.gz", 0, 0),
        ("rank0.1700000000900000000.pt.trace.json.gz", 0, 1),
        ("rank1.1700000000000000000.pt.trace.json.gz", 1, 0),
        ("rank10.1700000000000000000.pt.trace.json.gz", 10, 0),
    ]


def test_what_the_file_says_wins_over_its_name(tmp_path: Path) -> None:
    TraceBuilder().rank(3, 4).op("a", 0, 1).write(tmp_path / "rank0.json")
    assert found(tmp_path) == [("rank0.json", 3, 0)]
    assert found(tmp_path / "rank0.json") == [("rank0.json", 3, 0)]


def test_workers_without_a_rank(tmp_path: Path) -> None:
    for name in ("worker0.1623143089861.pt.trace.json", "worker1.1623143089861.pt.trace.json"):
        TraceBuilder().op("a", 0, 1).write(tmp_path / name)
    assert [rank for _, rank, _ in found(tmp_path)] == [0, 1]


def test_other_json_is_skipped_and_copies_count_once(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"steps": [1, 2]}))
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "broken.json.gz").write_text("no gzip")
    (tmp_path / ".hidden.json").write_text("{}")
    TraceBuilder().op("a", 0, 1).write(tmp_path / "run.json")
    TraceBuilder().op("a", 0, 1).write(tmp_path / "run.json.gz")
    assert found(tmp_path) == [("run.json", 0, 0)]


def test_one_folder_below_is_found_and_several_are_refused(tmp_path: Path) -> None:
    (tmp_path / "version_0" / "traces").mkdir(parents=True)
    TraceBuilder().op("a", 0, 1).write(tmp_path / "version_0" / "traces" / "rank0.json")
    assert found(tmp_path) == [("rank0.json", 0, 0)]
    (tmp_path / "version_1").mkdir()
    TraceBuilder().op("a", 0, 1).write(tmp_path / "version_1" / "rank0.json")
    with pytest.raises(TraceError, match=r"several runs \(version_0/traces, version_1"):
        find_traces(tmp_path)


def test_nothing_to_find(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no trace files"):
        find_traces(tmp_path)
    with pytest.raises(TraceError, match="does not exist"):
        find_traces(tmp_path / "missing")
