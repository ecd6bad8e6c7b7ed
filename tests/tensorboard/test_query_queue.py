"""Table rows and diffs come from a worker process, not from TensorBoard's."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.report.build import analyze
from lightning_perf.report.document import PerfReport
from lightning_perf.tensorboard import excerpt, query_worker
from lightning_perf.tensorboard.cache import BESIDE
from lightning_perf.tensorboard.query_queue import QueryQueue
from lightning_perf.tensorboard.query_worker import QueryAnswerer
from lightning_perf.tensorboard.task import Answered, Damaged, DiffQuery, Query, Refused, Reply, TableQuery, Working
from tests.support.processes import dies
from tests.tensorboard.support import InlineQueue, asker, write_trace
from tests.tensorboard.test_document_queue import until

QUEUE = "lightning_perf.tensorboard.query_queue"


def code(text: str, offset: int = 0) -> TableQuery:
    """A query whose text the scripted worker runs."""
    return TableQuery("/nowhere", 0, "kernels", offset, 10, None, True, text)


def scripted() -> QueryQueue:
    return QueryQueue("tests.tensorboard.scripted_workers:queries")


def reply(queue: QueryQueue, query: Query) -> Reply:
    found: list[Reply] = []

    def over() -> bool:
        answer = queue.ask(query)
        if not isinstance(answer, Working):
            found.append(answer)
        return bool(found)

    until(over)
    return found[0]


def process(queue: QueryQueue, query: Query) -> int:
    """The ID of the process that answered."""
    answer = reply(queue, query)
    assert isinstance(answer, Answered)
    return int(answer.data)


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers end soon after their last query."""
    monkeypatch.setattr(f"{QUEUE}.IDLE_S", 0.5)


def test_the_server_reads_no_report(logdir: Path, monkeypatch: pytest.MonkeyPatch, idle: None) -> None:
    for name, kernel_us in (("a", 40), ("b", 60)):
        write_trace(logdir / name / "x.pt.trace.json", kernel_us=kernel_us, kernels=3)
    compared = analyze(logdir / "a").diff(analyze(logdir / "b"))
    tab = asker(logdir, queries=QueryQueue())
    for name in ("a", "b"):
        tab.json("data/report", run=name)  # makes the documents

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("the server did a worker's work")

    for owner, function in ((excerpt, "read_tables"), (excerpt, "excerpt_diff"), (excerpt, "read_rows")):
        monkeypatch.setattr(owner, function, forbidden)
        monkeypatch.setattr(query_worker, function, forbidden)
    monkeypatch.setattr(PerfReport, "from_json", forbidden)
    arguments: dict[str, Any] = {"run": "a", "table": "kernels", "sort": "name", "descending": 0}
    until(lambda: tab.get("data/table", **arguments).status_code != 202)
    rows = tab.json("data/table", **arguments)
    assert [row["name"] for row in rows["rows"]] == ["kernel_0000", "kernel_0001", "kernel_0002"]
    until(lambda: tab.get("data/diff", run="a", other="b").status_code != 202)
    changed = tab.json("data/diff", run="a", other="b")
    assert changed["diff"]["kernels"]["change_ns"] == compared.diff.kernels.change_ns  # type: ignore[union-attr]


def test_a_report_is_read_once_for_many_queries(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json", kernels=3)
    tab = asker(logdir)
    tab.json("data/report", run="fit")
    (path,) = (logdir / "fit" / BESIDE).glob("*.report")
    read: list[Path] = []
    original = excerpt.read_tables
    monkeypatch.setattr(query_worker, "read_tables", lambda path: (read.append(path), original(path))[1])
    answerer = QueryAnswerer()
    for offset in range(12):
        answer = answerer.answer(TableQuery(str(path), 0, "kernels", offset, 1, None, True, ""))
        assert isinstance(answer, Answered)
        assert len(json.loads(answer.data)["rows"]) == (offset < 3)
    assert read == [path]


def test_one_process_answers_all_queries(idle: None) -> None:
    queue = scripted()
    workers: list[int] = []
    threads = [threading.Thread(target=lambda n=n: workers.append(process(queue, code("", n)))) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(workers) == 12
    assert len(set(workers)) == 1
    assert workers[0] != os.getpid()
    assert dies(workers[0])  # when it is idle
    until(lambda: not queue._running)
    assert process(queue, code("")) != workers[0]


def test_a_slow_query_is_answered_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle: None) -> None:
    monkeypatch.setattr(f"{QUEUE}.WAIT_S", 0.0)
    queue = scripted()
    slow = code(f"while not os.path.exists({str(tmp_path / 'go_on')!r}): time.sleep(0.01)")
    assert queue.ask(slow) == Working(0.0, "reading the report")
    (tmp_path / "go_on").touch()
    assert isinstance(reply(queue, slow), Answered)
    assert queue._entries == {}


def test_a_killed_worker_is_a_refusal_and_the_next_one_works(idle: None) -> None:
    queue = scripted()
    killed = reply(queue, code("os.kill(os.getpid(), 9)"))
    assert isinstance(killed, Refused)
    assert killed.status == 500
    assert "was killed by SIGKILL (out of memory?)" in killed.message
    assert process(queue, code("")) > 0


def test_a_worker_that_ended_between_queries_is_replaced(idle: None) -> None:
    queue = scripted()
    last = reply(queue, code("channel.send(Refused(500, 'no memory')); os._exit(0)"))
    assert last == Refused(500, "no memory")
    assert process(queue, code("")) > 0


def test_a_query_that_nobody_asks_for_any_more_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle: None
) -> None:
    monkeypatch.setattr(f"{QUEUE}.WAIT_S", 0.0)
    queue, number = scripted(), tmp_path / "number"
    queue.ask(code(f"open({str(number)!r}, 'w').write(str(os.getpid())); time.sleep(3600)"))
    until(lambda: number.exists() and number.read_text() != "")
    monkeypatch.setattr(f"{QUEUE}.ABANDONED_S", 0.0)
    assert dies(int(number.read_text()))
    until(lambda: not queue._entries)
    monkeypatch.setattr(f"{QUEUE}.ABANDONED_S", 60.0)
    assert process(queue, code("")) > 0


@pytest.mark.parametrize("damage", [b"", b"{", b"{}"])
def test_a_damaged_report_is_made_again(logdir: Path, damage: bytes) -> None:
    for name in ("a", "b"):
        write_trace(logdir / name / "x.pt.trace.json")
    tab = asker(logdir)
    asked: dict[str, Any] = {"table": {"run": "a", "table": "kernels"}, "diff": {"run": "b", "other": "a"}}
    for number, (route, arguments) in enumerate(asked.items(), 1):
        answer = tab.json(f"data/{route}", **arguments)
        (path,) = (logdir / "a" / BESIDE).glob("*.report")
        path.write_bytes(damage)
        assert tab.json(f"data/{route}", **arguments) == answer
        assert isinstance(tab.queue, InlineQueue)
        assert len([task for task in tab.queue.asked if task.folder == "a"]) == 1 + number


def test_a_missing_report_is_damaged() -> None:
    assert QueryAnswerer().answer(DiffQuery("/nowhere", "/nowhere")) == Damaged("/nowhere")
    assert QueryAnswerer().answer(code("")) == Damaged("/nowhere")
