"""``notes.rank0.jsonl``: the remarks of the callback on a fit, which the report repeats, one note per line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lightning_perf.run_files.jsonl import RankLog

_NOTES: RankLog[str] = RankLog(str, "notes", "note")


def write_notes(folder: Path, notes: Iterable[str]) -> None:
    """Write the notes of a fit, atomically. Rank 0 writes them for all."""
    _NOTES.replace(folder, 0, *notes)


def read_notes(folder: Path) -> tuple[str, ...]:
    """Read the notes of a fit; none when there is no file.

    Raises:
        TraceError: The file cannot be read, or a line is not a note.
    """
    path = _NOTES.path(folder, 0)
    return _NOTES.read(path) if path.exists() else ()
