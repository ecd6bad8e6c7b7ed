"""Files of JSON lines, whole and torn."""

import errno
import os
from pathlib import Path

import pytest

from lightning_perf.errors import TraceError
from lightning_perf.run_files.jsonl import JsonLines, LogWriter, RankLog, append


def read(folder: Path, content: bytes, restart: bytes | None = None) -> tuple[object, ...]:
    path = folder / "values.jsonl"
    path.write_bytes(content)
    return JsonLines(object, "value", restart=restart).read(path)


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_nothing_is_no_values(tmp_path: Path, content: bytes) -> None:
    assert read(tmp_path, content) == ()


@pytest.mark.parametrize("torn", [b"", b'{"a":', b"\xff", b'{"a":"\xc3'])
def test_a_torn_last_line_is_left_out(tmp_path: Path, torn: bytes) -> None:
    assert read(tmp_path, b'{"a":1}\n\n{"a":2}\n' + torn) == ({"a": 1}, {"a": 2})


def test_what_was_written_behind_a_torn_line_is_kept(tmp_path: Path) -> None:
    assert read(tmp_path, b'{"a":1}\n{"a":{"a":3}\n{"a":4}\n', restart=b"{") == ({"a": 1}, {"a": 3}, {"a": 4})


@pytest.mark.parametrize("restart", [None, b"{"])
def test_a_damaged_line_within_is_named(tmp_path: Path, restart: bytes | None) -> None:
    with pytest.raises(TraceError, match=r"values\.jsonl: line 2 is no value .*Remove that line"):
        read(tmp_path, b'{"a":1}\nrubbish\n{"a":2}\n', restart)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot be read .*Check the path and its permissions"):
        JsonLines(object, "value").read(tmp_path / "none.jsonl")


@pytest.mark.parametrize("durable", [False, True])
def test_what_is_appended_is_read_back(tmp_path: Path, durable: bool) -> None:
    log: JsonLines[dict[str, object]] = JsonLines(dict, "value", durable=durable)
    path = tmp_path / "values.jsonl"
    log.append(path, {"a": 1}, {"a": "two\nlines"})
    log.append(path)
    log.append(path, {})
    assert path.read_bytes() == b'{"a":1}\n{"a":"two\\nlines"}\n{}\n'
    assert log.read(path) == ({"a": 1}, {"a": "two\nlines"}, {})


def test_lines_of_their_own_survive_a_torn_one_before_them(tmp_path: Path) -> None:
    log: JsonLines[dict[str, int]] = JsonLines(dict, "value", own_lines=True)
    path = tmp_path / "values.jsonl"
    log.append(path, {"a": 1})
    path.write_bytes(path.read_bytes() + b'\n{"a":')
    log.append(path, {"a": 3})
    assert path.read_bytes() == b'\n{"a":1}\n\n{"a":\n{"a":3}\n'
    assert log.read(path) == ({"a": 1}, {"a": 3})


def test_each_rank_has_a_file(tmp_path: Path) -> None:
    log: RankLog[dict[str, int]] = RankLog(dict, "steps", "value")
    for rank in (11, 2):
        log.append(log.path(tmp_path, rank), {"rank": rank})
    (tmp_path / "windows.rank0.jsonl").touch()
    assert [path.name for path in log.paths(tmp_path)] == ["steps.rank11.jsonl", "steps.rank2.jsonl"]
    assert log.read(log.path(tmp_path, 2)) == ({"rank": 2},)


def test_a_writer_reports_its_first_error_and_stops(tmp_path: Path) -> None:
    errors: list[str] = []
    path = tmp_path / "gone" / "values.jsonl"

    def report(consequence: str, error: OSError) -> None:
        errors.append(f"{consequence}: {error.strerror}")

    writer: LogWriter[int] = LogWriter(JsonLines(int, "value"), path, report, "no value is saved")
    writer.append()
    writer.append(1)
    path.parent.mkdir()
    writer.append(2)
    without_path: LogWriter[int] = LogWriter(JsonLines(int, "value"), None, report, "no path is no error")
    without_path.append(1)
    assert errors == ["no value is saved: No such file or directory"]
    assert writer.path is None
    assert not path.exists()


@pytest.mark.parametrize("room", [0, 3])
def test_what_a_full_disk_cuts_off_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    path = tmp_path / "x"
    append(path, b"first\n")
    write = os.write
    left = [room]

    def full(descriptor: int, content: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        part, left[0] = min(left[0], len(content)), 0
        return write(descriptor, content[:part])

    monkeypatch.setattr("os.write", full)
    with pytest.raises(OSError, match="No space left"):
        append(path, b"second\n")
    monkeypatch.undo()
    assert path.read_bytes() == b"first\n"
    append(path, b"third\n")
    assert path.read_bytes() == b"first\nthird\n"


def test_a_short_write_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr("os.write", lambda descriptor, content: write(descriptor, content[:2]))
    append(tmp_path / "x", b"abcde\n")
    assert (tmp_path / "x").read_bytes() == b"abcde\n"
