"""Files of JSON lines that a run appends to while it lasts: a killed run loses nothing but a torn last line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from lightning_perf.errors import TraceError

__all__ = ["read_json_lines"]

Value = TypeVar("Value")


def read_json_lines(
    path: str | Path,
    decode: Callable[[bytes], Value],
    *,
    what: str,
    restart: bytes | None = None,
) -> tuple[Value, ...]:
    """Read a file of one JSON value a line. Empty lines and a torn last line are left out.

    Args:
        path: The file.
        decode: Makes a value of a line.
        what: What a line is, for messages: ``step sample``.
        restart: How a value begins, where a run that was resumed may have written one behind a torn line: what stands
            there from its last occurrence on is then tried as well.

    Returns:
        The values, in the order in which they were written.

    Raises:
        TraceError: The file cannot be read, or a line within it is no such value.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise TraceError(path, f"cannot be read ({error.strerror})", "Check the path and its permissions") from error
    values: list[Value] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values.append(_decode(line, decode, restart))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if number == len(lines):
                break
            raise TraceError(path, f"line {number} is no {what} ({error})", "Remove that line") from error
    return tuple(values)


def _decode(line: bytes, decode: Callable[[bytes], Value], restart: bytes | None) -> Value:
    try:
        return decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        begin = line.rfind(restart, 1) if restart is not None else -1
        if begin < 0:
            raise
        return decode(line[begin:])
