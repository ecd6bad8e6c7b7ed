"""Appending to the files that a study and its runs leave: a line is there whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["append_whole"]


def append_whole(path: Path, content: bytes) -> None:
    """Append to a file in one write that reaches the disk. What a full disk cuts off is taken back.

    Args:
        path: The file; made when it does not exist.
        content: What to append.

    Raises:
        OSError: It cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        begin = os.fstat(descriptor).st_size
        written = 0
        try:
            while written < len(content):  # a disk that is nearly full takes a part, and refuses only the next write
                written += os.write(descriptor, content[written:])
        except OSError:
            if os.fstat(descriptor).st_size == begin + written:  # nobody else has appended since
                with suppress(OSError):
                    os.ftruncate(descriptor, begin)
            raise
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
