"""Files that are damaged, odd, or no traces at all: read as far as they go and flagged, or refused with a reason."""

import bz2
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_perf.errors import TraceError
from lightning_perf.trace.description import Problems
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.trace import Trace
from tests.support.trace_builder import TraceBuilder

SOUND = (
    TraceBuilder(traceName="a]b},{c")
    .step(1, 0, 100)
    .op("aten::mm", 10, 30, types=["float"], dims=[[3, 4]])
    .launch("gemm", call_us=15, call_duration_us=5, start_us=40, duration_us=50)
    .step(2, 100, 100)
    .op("aten::mm", 110, 30)
    .launch("gemm", call_us=115, call_duration_us=5, start_us=140, duration_us=50)
)


def written(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def event_text(**changes: str) -> str:
    """An operator's event as text, with fields replaced by any text at all; an empty one leaves the field out."""
    fields = {
        "ph": '"X"', "cat": '"cpu_op"', "name": '"odd"', "pid": "1", "tid": "1", "ts": "50", "dur": "7", "args": "{}",
        **changes,
    }  # fmt: skip
    return "{" + ", ".join(f'"{key}": {value}' for key, value in fields.items() if value) + "}"


def with_event(folder: Path, text: str) -> Path:
    """The sound trace with one more event in the middle, as text."""
    document = json.dumps(SOUND.document())
    middle = document.index(', {"ph"', document.index("gemm"))
    return written(folder / "odd.json", f"{document[:middle]}, {text}{document[middle:]}")


def names(trace: Trace) -> list[str]:
    return [trace.names[code] for code in trace.operators.name]


def assert_sound(trace: Trace) -> None:
    assert names(trace) == ["aten::mm", "aten::mm"]
    assert trace.steps.number.tolist() == [1, 2]
    assert trace.links.device_runtime.tolist() == [0, 1]
    assert trace.problems == Problems()


REWRITTEN: dict[str, Callable[[str], bytes]] = {
    "as it is": str.encode,
    "byte-order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "blank lines before": lambda text: ("\n\n  " + text).encode(),
    "no blanks": lambda text: json.dumps(json.loads(text), separators=(",", ":")).encode(),
    "indented": lambda text: json.dumps(json.loads(text), indent=4).encode(),
    "indented with carriage returns": lambda text: (
        json.dumps(json.loads(text), indent=2).replace("\n", "\r\n").encode()
    ),
    "keys sorted": lambda text: json.dumps(json.loads(text), sort_keys=True).encode(),
    "a list at the top": lambda text: json.dumps(json.loads(text)["traceEvents"]).encode(),
    "events first": lambda text: json.dumps(dict(reversed(json.loads(text).items()))).encode(),
    "gzip": lambda text: gzip.compress(text.encode()),
    "gzip of several members": lambda text: gzip.compress(text[:300].encode()) + gzip.compress(text[300:].encode()),
    "gzip with padding": lambda text: gzip.compress(text.encode()) + b"\0" * 512,
    "events in reverse": lambda text: json.dumps(
        {**json.loads(text), "traceEvents": json.loads(text)["traceEvents"][::-1]}
    ).encode(),
    "thread ids as text": lambda text: text.replace('"tid": 1000', '"tid": "1000"').encode(),
    "correlations as text": lambda text: text.replace("999999", '"999999"').encode(),
    "old category names": lambda text: (
        text.replace("cpu_op", "Operator")
        .replace("cuda_runtime", "Runtime")
        .replace('"kernel"', '"Kernel"')
        .replace("user_annotation", "Operator")
        .encode()
    ),
    "streams as text": lambda text: text.replace('"stream": 7', '"stream": "stream 7"').encode(),
}


@pytest.mark.parametrize("way", REWRITTEN)
def test_the_same_events_written_otherwise(way: str, tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "trace.json", REWRITTEN[way](json.dumps(SOUND.document()))))
    assert_sound(trace)
    assert trace.device.stream.tolist() == [7, 7]


ODD_BUT_READ = {
    "unescaped quotes": (event_text(name='"say "hi" twice"'), 'say "hi" twice', True),
    "unescaped backslash": (event_text(name=r'"C:\path\x"'), r"C:\path\x", True),
    "control character": (event_text(name='"a\x01b"'), "a b", True),
    "newline in a name": (event_text(name='"a\nb"'), "a b", True),
    "lone surrogate": (event_text(name=r'"a\ud800b"'), "a\ufffdb", True),
    "bare nan": (event_text(args='{"flops": nan}'), "odd", True),
    "bare -inf": (event_text(args='{"x": -inf, "y": [Infinity, N/A]}'), "odd", True),
    "trailing comma": (event_text(args='{"a": 1,}'), "odd", True),
    "a number beyond 64 bits": (event_text(args=f'{{"Sequence number": {10**30}}}'), "odd", False),
    "a number with 5,000 digits": (event_text(args='{"flops": ' + "9" * 5000 + "}"), "odd", True),
    "args of another type": (event_text(args='"none"'), "odd", False),
    "args null": (event_text(args="null"), "odd", False),
    "a name that is a number": (event_text(name="12"), "12", False),
    "no name": (event_text(name=""), "", False),
    "no thread": (event_text(tid="", pid=""), "odd", False),
    "a time in quotes": (event_text(ts='"50"'), "odd", False),
    "deep nesting": (event_text(args='{"x": ' + "[" * 400 + "]" * 400 + "}"), "odd", False),
    "unknown phase before it": ('{"ph": "?", "ts": 1}, ' + event_text(), "odd", False),
    "a key twice": (event_text(args='{"flops": 1, "flops": 2}'), "odd", False),
}


@pytest.mark.parametrize("what", ODD_BUT_READ)
def test_odd_events_are_read(what: str, tmp_path: Path) -> None:
    text, name, repaired = ODD_BUT_READ[what]
    trace = read_trace(with_event(tmp_path, text))
    assert names(trace) == ["aten::mm", name, "aten::mm"]
    assert trace.operators.duration_ns.tolist() == [30_000, 7_000, 30_000]
    assert trace.problems == Problems(repaired_events=int(repaired))


def test_invalid_utf8_is_replaced(tmp_path: Path) -> None:
    data = json.dumps(SOUND.document()).replace("aten::mm", "caf@", 1).encode().replace(b"@", b"\xe9")
    trace = read_trace(written(tmp_path / "trace.json", data))
    assert names(trace) == ["caf\ufffd", "aten::mm"]
    assert trace.problems == Problems(repaired_events=1)


@pytest.mark.parametrize(
    "text",
    [
        event_text(dur=""),
        event_text(dur="-1"),
        event_text(dur='"N/A"'),
        event_text(ts=""),
        event_text(ts="null"),
        event_text(ts="1e30"),
        event_text(ts="true"),
        event_text(dur="9" * 40),
        event_text(ts="1e999999"),
    ],
)
def test_events_without_a_time_are_left_out_and_counted(text: str, tmp_path: Path) -> None:
    trace = read_trace(with_event(tmp_path, text))
    assert names(trace) == ["aten::mm", "aten::mm"]
    assert trace.problems == Problems(bad_durations=1)


def test_an_event_beyond_repair_is_dropped_and_counted(tmp_path: Path) -> None:
    trace = read_trace(with_event(tmp_path, '{"ph": "X", "cat" "cpu_op" [}'))
    assert names(trace) == ["aten::mm", "aten::mm"]
    assert trace.problems == Problems(dropped_events=1)


def test_an_event_without_a_category_is_no_trouble(tmp_path: Path) -> None:
    assert_sound(read_trace(with_event(tmp_path, event_text(cat=""))))


@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.75, 0.97])
def test_a_truncated_file_is_read_to_its_last_whole_event(share: float, gzipped: bool, tmp_path: Path) -> None:
    builder = TraceBuilder()
    for number in range(200):
        builder.step(number, 100 * number, 100).op("aten::mm", 100 * number + 10, 30)
    data = json.dumps(builder.document()).encode()
    data = gzip.compress(data) if gzipped else data
    trace = read_trace(written(tmp_path / "trace.json", data[: int(len(data) * share)]))
    assert trace.problems.truncated
    assert 0 < len(trace.steps) < 200
    assert abs(len(trace.operators) - len(trace.steps)) <= 1


def test_every_cut_of_a_file_is_read_or_refused(tmp_path: Path) -> None:
    data = json.dumps(SOUND.document()).encode()
    rows = 0
    for end in [*range(0, len(data) - 10, 7), len(data) - 1]:
        try:
            trace = read_trace(written(tmp_path / "cut.json", data[:end]))
        except TraceError:
            assert rows == 0
            continue
        assert trace.problems.truncated
        found = sum(len(table) for table in trace.tables())
        assert found >= rows
        rows = found
    assert rows == len(SOUND.events)


REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "blanks": (b"  \n ", "blank, cut off or damaged"),
    "text": (b"hello", "is not JSON"),
    "a number": (b"42", "is not JSON"),
    "an object that is no trace": (b'{"a": 1}', "traceEvents"),
    "a list of numbers": (b"[1, 2, 3]", "no event of a PyTorch recording"),
    "no events": (b'{"traceEvents": []}', "no event of a PyTorch recording"),
    "events that are no list": (b'{"traceEvents": {}}', "traceEvents"),
    "another tool's trace": (b'{"traceEvents": [{"ph": "X", "cat": "toplevel", "ts": 1, "dur": 1}]}', "no event"),
    "zip": (b"PK\x03\x04....", "a zip archive"),
    "bzip2": (bz2.compress(b"{}"), "compressed with bzip2"),
    "damaged gzip": (b"\x1f\x8b" + b"\xff" * 60, "blank, cut off or damaged"),
    "binary": (bytes(range(256)) * 8, "is not JSON"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_trace_is_refused(what: str, tmp_path: Path) -> None:
    data, message = REFUSED[what]
    path = written(tmp_path / "file.json", data)
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    assert caught.value.action


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="does not exist"):
        read_trace(tmp_path / "missing.json")
    with pytest.raises(TraceError, match="is a folder"):
        read_trace(tmp_path)
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(TraceError, match="not a regular file"):
        read_trace(tmp_path / "pipe.json")


def test_a_bomb_is_refused_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_perf.trace.text.bytestream.EXPANSION_CHECKED_FROM_BYTES", 2 << 20)
    event = event_text().encode() + b","
    packed = gzip.compress(b'{"traceEvents": [' + event * ((4 << 20) // len(event)))
    with pytest.raises(TraceError, match=r"decompresses to more than [23] MB from 0\.\d+ MB, over 200 times its size"):
        read_trace(written(tmp_path / "bomb.json.gz", packed))


def test_an_endless_event_is_refused_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_perf.trace.text.pieces.LARGEST_EVENT_BYTES", 1 << 20)
    with pytest.raises(TraceError, match=r"something of [12] MB that is not a list of events"):
        read_trace(written(tmp_path / "trace.json", b'{"traceEvents": [{"name": "' + b"x" * (3 << 20)))
