"""Cutting a file into pieces of whole events, wherever the pieces' ends fall."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.trace.description import Problems
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.text import pieces


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1 << 12)
    monkeypatch.setattr("lightning_perf.trace.text.bytestream.READ_BYTES", 1 << 10)


def operator(number: int, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": "cpu_op", "name": f"op {number}", "pid": 1, "tid": 1, "ts": number, "dur": 1, "args": args,
    }  # fmt: skip


def assert_all_read(events: list[dict[str, Any]], folder: Path, **layout: Any) -> None:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "traceName": "a"}, **layout))
    trace = read_trace(path)
    assert [trace.names[code] for code in trace.operators.name] == [event["name"] for event in events]
    assert trace.problems == Problems()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("layout", [{}, {"separators": (",", ":")}, {"indent": 2}], ids=["blanks", "none", "indented"])
@pytest.mark.parametrize("nested", [1, 3, 400])
def test_objects_that_look_like_events_inside_arguments(nested: int, layout: dict[str, Any], tmp_path: Path) -> None:
    lookalikes = [{"ph": "X", "name": "]},{[", "args": {}} for _ in range(nested)]
    assert_all_read([operator(number, data=lookalikes) for number in range(3000 // nested)], tmp_path, **layout)


def test_one_event_of_many_pieces(tmp_path: Path) -> None:
    lookalikes = [{"ph": "X", "name": "an event", "args": {}} for _ in range(40_000)]
    assert_all_read([operator(0), operator(1, data=lookalikes), operator(2)], tmp_path)


@pytest.mark.usefixtures("small_pieces")
def test_events_whose_keys_stand_in_another_order_each(tmp_path: Path) -> None:
    events = [operator(number) for number in range(2000)]
    turned = [
        dict(list(event.items())[number % 8 :] + list(event.items())[: number % 8])
        for number, event in enumerate(events)
    ]
    assert_all_read(turned, tmp_path)


@pytest.mark.usefixtures("small_pieces")
def test_a_quote_that_is_not_escaped_costs_no_other_event(tmp_path: Path) -> None:
    lookalikes = [{"ph": "X", "name": "an event", "args": {}}]
    events = [operator(number, data=lookalikes if number % 50 else []) for number in range(2000)]
    text = json.dumps({"traceEvents": events}).replace('"op 1000"', '"op "10"00"')
    path = tmp_path / "trace.json"
    path.write_text(text)
    trace = read_trace(path)
    names = {trace.names[code] for code in trace.operators.name}
    assert names >= {f"op {number}" for number in range(2000) if number != 1000 and not 960 < number < 1040}
    assert trace.problems.repaired_events + trace.problems.dropped_events > 0


@pytest.mark.parametrize("read_bytes", [1, 2, 7, 64])
def test_what_stands_before_the_events_may_be_read_in_any_parts(
    read_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_perf.trace.text.bytestream.READ_BYTES", read_bytes)
    path = tmp_path / "trace.json"
    document = {"host_name": "x" * 300, "distributedInfo": {"rank": 3}, "traceEvents": [operator(0), operator(1)]}
    path.write_bytes(b"\xef\xbb\xbf \n\n " + json.dumps(document, indent=1).encode())
    trace = read_trace(path)
    assert len(trace.operators) == 2
    assert (trace.metadata.hostname, trace.metadata.rank) == ("x" * 300, 3)
