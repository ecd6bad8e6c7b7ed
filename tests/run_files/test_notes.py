from pathlib import Path

import pytest

from lightning_perf import TraceError
from lightning_perf.run_files.notes import read_notes, write_notes

NOTES = ("Recorded 0 of 5 steps: …", 'OSError: "a\\b"\n\tNo space left', "")
CONTENT = b'"Recorded 0 of 5 steps: \xe2\x80\xa6"\n"OSError: \\"a\\\\b\\"\\n\\tNo space left"\n""\n'


def test_notes_come_back_as_they_were(tmp_path: Path) -> None:
    write_notes(tmp_path, NOTES)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.rank0.jsonl"]
    assert (tmp_path / "notes.rank0.jsonl").read_bytes() == CONTENT
    assert read_notes(tmp_path) == NOTES


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "notes.rank0.jsonl").write_bytes(CONTENT[:-2])
    assert read_notes(tmp_path) == NOTES[:2]


def test_a_run_without_notes_has_none(tmp_path: Path) -> None:
    assert read_notes(tmp_path) == ()


def test_what_is_no_note_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.rank0.jsonl").write_bytes(b'{"step": 1}\n"fine"\n')
    with pytest.raises(TraceError, match="line 1 is no note"):
        read_notes(tmp_path)
