"""Whole files: replaced atomically, so that readers see the old content or the new one, and read with clear errors."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import msgspec

from lightning_perf.errors import TraceError
from lightning_perf.saved_json import decode_json

T = TypeVar("T")


@contextmanager
def atomic_file(path: Path, *, mode: int | None = None, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of `path` when the block ends.

    If the block fails, the temporary file is removed and `path` stays unchanged. Without `durable`, `path` may have a
    part of the content after a crash of the machine.

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
            if durable:
                file.flush()
                os.fsync(file.fileno())  # else a crash of the machine may leave the new name with an empty file
        if mode is not None:
            partial.chmod(mode)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with atomic_file(path) as file:
        file.write(content)


def write_named_file(path: Path, content: bytes) -> None:
    """Write a file that the user named: atomically, unless it is a pipe or a device. A link stays a link."""
    if Path("/dev") in path.parents or (path.exists() and not path.is_file()):
        path.write_bytes(content)
        return
    path = path.resolve()
    with atomic_file(path, mode=stat.S_IMODE(path.stat().st_mode) if path.exists() else None) as file:
        file.write(content)


def encode_document(document: object) -> bytes:
    r"""Encode a document as indented JSON with a final newline.

    Example:
        >>> encode_document({"a": 1})
        b'{\n  "a": 1\n}\n'
    """
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def write_document(path: Path, document: object) -> None:
    """Write a document as indented JSON, atomically."""
    replace_file(path, encode_document(document))


class JsonFile(Generic[T]):
    """A JSON file in the folder of a run."""

    def __init__(self, kind: type[T], name: str, problem: str) -> None:
        self._kind, self._name, self._problem = kind, name, problem

    def write(self, folder: Path, value: T) -> None:
        """Write the file, atomically."""
        replace_file(folder / self._name, msgspec.json.encode(value))

    def read(self, path: str | Path) -> T:
        """Read the file, wherever it is. Raise a `TraceError` if it cannot be read, or has other content."""
        return read_json(path, self._kind, self._problem)


def read_json(path: str | Path, kind: type[T], problem: str, action: str = "Remove it") -> T:
    """Read a JSON file of a run."""
    try:
        found: T = decode_json(Path(path).read_bytes(), kind)
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        raise TraceError(path, reason, f"Pass the path of a {Path(path).name} file") from error
    except msgspec.DecodeError as error:
        raise TraceError(path, f"{problem} ({error})", action) from error
    return found


def read_variable(name: str, kind: type[T]) -> T | None:
    """Read JSON from an environment variable; None if it is not set or holds something else."""
    try:
        found: T = decode_json(os.environ.get(name, ""), kind)
    except msgspec.DecodeError:
        return None
    return found
