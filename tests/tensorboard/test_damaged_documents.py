"""A damaged document in the cache is made again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightning_perf.documents import page_json
from lightning_perf.report.build import analyze
from lightning_perf.tensorboard.cache import BESIDE, key_of, places_of, write
from lightning_perf.tensorboard.queue import Queue
from tests.tensorboard.support import Asker, InlineQueue, asker, run_of, until, write_study, write_trace

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
