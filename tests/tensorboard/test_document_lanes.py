"""A run that takes long holds up neither small runs nor, once nobody waits for it, the machine."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from lightning_perf.tensorboard.document_queue import SMALL_BYTES
from lightning_perf.tensorboard.task import Done, SourceFile, Task, Working
from tests.support.processes import dies
from tests.tensorboard.test_document_queue import Scripted, ending, task, until

QUEUE = "lightning_perf.tensorboard.document_queue"


def large(key: str) -> Task:
    """A task whose files are not small."""
    files = (SourceFile(f"run-{key}/a.json", SMALL_BYTES + 1, "v", "/nowhere"),)
    return msgspec.structs.replace(task(key), files=files)


def blocking(tmp_path: Path, *keys: str) -> Scripted:
    """A queue whose workers write their process ID, and for these keys wait for a file."""
    return Scripted(
        f"folder = Path({str(tmp_path)!r})\n(folder / task.key).write_text(str(os.getpid()))\n"
        f"while task.key in {keys!r} and not (folder / 'go_on').exists(): time.sleep(0.01)"
    )


def test_small_runs_go_past_one_that_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = blocking(tmp_path, "long")
    queue.ask(task("long"))
    until((tmp_path / "long").exists)
    assert queue.ask(task("small")) == Working(0.0, "waiting for another analysis to finish")
    monkeypatch.setattr(f"{QUEUE}.BUSY_S", 0.0)
    assert ending(queue, task("small")) == Done()
    assert isinstance(queue.ask(task("long")), Working)
    (tmp_path / "go_on").touch()
    assert ending(queue, task("long")) == Done()
    until(lambda: not queue._running)


def test_there_are_two_workers_at_most_and_one_for_large_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{QUEUE}.BUSY_S", 0.0)
    queue = blocking(tmp_path, "a", "b", "c")
    queue.ask(large("a"))
    until((tmp_path / "a").exists)
    for _ in range(3):
        for waiting in (large("d"), task("b"), task("c")):
            queue.ask(waiting)
    until((tmp_path / "b").exists)
    assert len(queue._running) == 2
    assert not (tmp_path / "c").exists()
    assert not (tmp_path / "d").exists()
    (tmp_path / "go_on").touch()
    for waiting in (large("a"), large("d"), task("b"), task("c")):
        assert ending(queue, waiting) == Done()
    until(lambda: not queue._running)


def test_a_worker_that_nobody_waits_for_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = blocking(tmp_path, "a")
    queue.ask(task("a"))
    until(lambda: (tmp_path / "a").exists() and (tmp_path / "a").read_text() != "")
    monkeypatch.setattr(f"{QUEUE}.ABANDONED_S", 0.0)
    assert dies(int((tmp_path / "a").read_text()))
    until(lambda: not queue._running)
    monkeypatch.undo()
    (tmp_path / "go_on").touch()
    assert queue.ask(task("a")) == Working(0.0, "starting")
    assert ending(queue, task("a")) == Done()


def test_a_worker_whose_page_asks_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{QUEUE}.ABANDONED_S", 5.0)
    queue = blocking(tmp_path, "a")
    queue.ask(task("a"))
    until((tmp_path / "a").exists)
    entry = next(iter(queue._entries.values()))
    entry.asked_s -= 4.0  # almost given up
    queue.ask(task("a"))
    assert time.monotonic() - entry.asked_s < 4.0
    (tmp_path / "go_on").touch()
    assert ending(queue, task("a")) == Done()
