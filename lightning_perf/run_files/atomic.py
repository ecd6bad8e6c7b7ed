"""Replacing a file atomically: readers see the old content or the new one, never a part of it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

__all__ = ["atomic_file", "encode_document", "replace_file", "write_document"]


@contextmanager
def atomic_file(path: Path, *, mode: int | None = None) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of `path` when the block ends.

    If the block fails, the temporary file is removed and `path` stays unchanged.

    Args:
        path: The file to write or replace.
        mode: Permissions of the file; None for the default, which depends on the umask.

    Yields:
        The temporary file, open for writing.

    Raises:
        OSError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> with atomic_file(Path(folder.name, "report.json")) as file:
        ...     _ = file.write(b"{}")
        >>> [path.name for path in Path(folder.name).iterdir()]
        ['report.json']
        >>> folder.cleanup()
    """
    # A hidden name of its own, so that no scan takes the part for a file of the run. It does not contain the name of
    # the target, which may be as long as the file system allows. Several machines may write to one folder, so the
    # process ID alone is not unique.
    partial = path.with_name(f".{os.getpid()}.{uuid.uuid4().hex[:12]}.partial")
    file = partial.open("xb")  # exclusive: never through a link that somebody else has put there
    try:
        with file:
            yield file
        if mode is not None:
            partial.chmod(mode)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically.

    Args:
        path: The file to write or replace. If writing fails, it stays unchanged.
        content: The new content.

    Raises:
        OSError: The file cannot be written.
    """
    with atomic_file(path) as file:
        file.write(content)


def encode_document(document: object) -> bytes:
    r"""Encode a document as indented JSON with a final newline.

    Example:
        >>> encode_document({"a": 1})
        b'{\n  "a": 1\n}\n'
    """
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def write_document(path: Path, document: object) -> None:
    """Write a document as indented JSON, atomically.

    Args:
        path: The file to write or replace.
        document: Any value that msgspec encodes, e.g. a dataclass.

    Raises:
        OSError: The file cannot be written.
    """
    replace_file(path, encode_document(document))
