"""``notes.rank0.jsonl``: the remarks of the callback on a fit, which the report repeats, one note per line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lightning_perf.run_files.atomic import replace_file
from lightning_perf.run_files.jsonl import RankLog

__all__ = ["read_notes", "write_notes"]

_NOTES: RankLog[str] = RankLog(str, "notes", "note")


def _path(folder: Path) -> Path:
    """The file in the folder of a run; rank 0 writes it for all."""
    return _NOTES.path(folder, 0)


def write_notes(folder: Path, notes: Iterable[str]) -> None:
    """Write the notes of a fit, atomically.

    Raises:
        OSError: They cannot be written.
    """
    replace_file(_path(folder), _NOTES.encode(*notes))


def read_notes(folder: Path) -> tuple[str, ...]:
    """Read the notes of a fit; none when there is no file.

    Raises:
        TraceError: The file cannot be read, or a line is not a note.
    """
    path = _path(folder)
    return _NOTES.read(path) if path.exists() else ()
