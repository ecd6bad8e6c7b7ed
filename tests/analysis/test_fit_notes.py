from pathlib import Path

import pytest

from lightning_perf import TraceError
from lightning_perf.analysis.fit_notes import encode_notes, read_notes


def test_notes_come_back_as_they_were(tmp_path: Path) -> None:
    notes = ("Recorded 0 of 5 steps: …", 'OSError: "a\\b"\n\tNo space left', "")
    path = tmp_path / "notes.rank0.jsonl"
    path.write_bytes(encode_notes(notes))
    assert read_notes(path) == notes


def test_what_is_no_note_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.rank0.jsonl"
    path.write_bytes(b'{"step": 1}\n"fine"\n')
    with pytest.raises(TraceError, match="line 1 is no note"):
        read_notes(path)
