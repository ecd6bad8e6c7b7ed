from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.tensorboard.discovery import Table, read_roots
from lightning_perf.tensorboard.scanner import Scanner
from tests.tensorboard.support import write_trace


def test_new_runs_appear(logdir: Path) -> None:
    scanner = Scanner(read_roots(str(logdir), None), fresh_s=0.0, fresh_looks=0.0, patience_s=60.0)
    first = scanner.table(60.0)
    write_trace(logdir / "a.pt.trace.json")
    second = scanner.table(60.0)
    assert first is not None
    assert second is not None
    assert (list(first.runs), list(second.runs)) == ([], ["."])


def test_a_fresh_table_is_not_looked_up_again(logdir: Path) -> None:
    scanner = Scanner(read_roots(str(logdir), None), fresh_s=3600.0)
    assert scanner.table(60.0) is scanner.table(60.0)


def test_nobody_waits_for_a_slow_folder_longer_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    calls: list[int] = []

    def slow(*_: Any) -> Table:
        calls.append(1)
        go_on.wait(60.0)
        return Table()

    monkeypatch.setattr("lightning_perf.tensorboard.scanner.discover", slow)
    scanner = Scanner((), fresh_s=3600.0)
    assert scanner.table(0.0) is None
    assert scanner.table(0.0) is None
    go_on.set()
    assert scanner.table(60.0) == Table()
    assert calls == [1]


def test_a_failing_look_keeps_the_runs_and_says_why(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_trace(logdir / "a.pt.trace.json")
    scanner = Scanner(read_roots(str(logdir), None), fresh_s=0.0, fresh_looks=0.0, patience_s=60.0)
    scanner.table(60.0)

    def fail(*_: Any) -> Table:
        raise RuntimeError("boom")

    monkeypatch.setattr("lightning_perf.tensorboard.scanner.discover", fail)
    table = scanner.table(60.0)
    assert table is not None
    assert list(table.runs) == ["."]
    assert table.notes == ("The runs cannot be listed (RuntimeError: boom).",)
