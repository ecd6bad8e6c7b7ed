"""Files of JSON lines, whole and torn."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lightning_perf.analysis.json_lines import read_json_lines
from lightning_perf.errors import TraceError


def read(folder: Path, content: bytes, restart: bytes | None = None) -> tuple[object, ...]:
    path = folder / "values.jsonl"
    path.write_bytes(content)
    return read_json_lines(path, msgspec.json.decode, what="value", restart=restart)


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
        read_json_lines(tmp_path / "none.jsonl", msgspec.json.decode, what="value")
