"""What the callback had to say of a fit: one line a note, in ``notes.rank0.jsonl``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from lightning_perf.analysis.json_lines import read_json_lines

__all__ = ["NOTES_NAME", "encode_notes", "read_notes"]

NOTES_NAME = "notes.rank0.jsonl"

_decoder = msgspec.json.Decoder(str)


def encode_notes(notes: Iterable[str]) -> bytes:
    r"""Encode notes as the lines of a ``notes.rank0.jsonl`` file.

    Example:
        >>> encode_notes(["Recorded 2 of 5 steps.", "The disk\nis full."])
        b'"Recorded 2 of 5 steps."\n"The disk\\nis full."\n'
    """
    return b"".join(msgspec.json.encode(note) + b"\n" for note in notes)


def read_notes(path: str | Path) -> tuple[str, ...]:
    """Read the notes of a fit.

    Args:
        path: A ``notes.rank0.jsonl`` file.

    Raises:
        TraceError: The file cannot be read, or a line within it is no note.
    """
    return read_json_lines(path, _decoder.decode, what="note")
