"""The report of a run as a file."""

from pathlib import Path

import msgspec
import pytest

from lightning_perf.run_files.report import read_notes, read_report_fields, write_notes, write_report


class Fields(msgspec.Struct):
    lead: int


def test_the_fields_that_are_asked_for_are_read_back(tmp_path: Path) -> None:
    write_report(tmp_path, {"lead": 3, "ranks": []})
    assert (tmp_path / "report.json").read_text() == '{\n  "lead": 3,\n  "ranks": []\n}\n'
    assert read_report_fields(tmp_path, Fields) == Fields(3)


@pytest.mark.parametrize("content", [None, b"", b'{"lead": 3, "ran', b"[]", b'{"lead": null}'])
def test_no_report_or_another_one_is_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "report.json").write_bytes(content)
    assert read_report_fields(tmp_path, Fields) is None


def test_notes_come_back_as_they_were(tmp_path: Path) -> None:
    assert read_notes(tmp_path) == ()
    notes = ("Recorded 0 of 5 steps: …", 'OSError: "a\\b"\n\tNo space left', "")
    write_notes(tmp_path, notes)
    content = b'"Recorded 0 of 5 steps: \xe2\x80\xa6"\n"OSError: \\"a\\\\b\\"\\n\\tNo space left"\n""\n'
    assert (tmp_path / "notes.rank0.jsonl").read_bytes() == content
    assert read_notes(tmp_path) == notes
