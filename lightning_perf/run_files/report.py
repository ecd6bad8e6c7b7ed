"""``report.json``: the report of a run, next to its traces, and ``notes.rank0.jsonl``: the callback's notes for it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from lightning_perf.run_files.atomic import write_document
from lightning_perf.run_files.jsonl import RankLog
from lightning_perf.saved_json import decode_json

REPORT_NAME = "report.json"

_NOTES: RankLog[str] = RankLog(str, "notes", "note")

Fields = TypeVar("Fields")


def write_report(folder: Path, report: object) -> None:
    """Write ``report.json`` in the folder of a run, atomically."""
    write_document(folder / REPORT_NAME, report)


def read_report_fields(folder: Path, kind: type[Fields]) -> Fields | None:
    """Read the fields of a report that are needed; None without a report, or if it does not have them."""
    try:
        fields: Fields = decode_json((folder / REPORT_NAME).read_bytes(), kind)
    except (OSError, msgspec.DecodeError):
        return None
    return fields


def write_notes(folder: Path, notes: Iterable[str]) -> None:
    """Write the notes of a fit, atomically. Rank 0 writes them for all."""
    _NOTES.replace(folder, 0, *notes)


def read_notes(folder: Path) -> tuple[str, ...]:
    """Read the notes of a fit; none when there is no file."""
    path = _NOTES.path(folder, 0)
    return _NOTES.read(path) if path.exists() else ()
